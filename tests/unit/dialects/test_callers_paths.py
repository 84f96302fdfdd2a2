"""Whatever path a request has: nothing outside of the directories for callers is touched."""

import asyncio
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as search
from support.caller import Caller
from support.engine.scripted import CHAT, ScriptedEngine
from support.volume.callers_paths import PATHS, lay_links

V2 = "/v2/batch-completions"
TURNS: dict[str, Any] = {"messages": []}
# What is there to be read or overwritten.
OWN = b'[{"prompt": "a", "response": "b"}]\n'
HIDDEN = ("inbox/.env", "out/.cache/token", "uploads/.cache/.env")
FILES = (
    *HIDDEN,
    *("inbox/a", "inbox/deep/config.json", "uploads/a", "out/my-model/config.json", "out/hf/token"),
    *("models/my-model/config.json", "adapters/my-model/config.json", ".cache/token", ".env"),
    *("worker/files/token", "secret/.env", "../secret", "../models/config.json"),
)
# Where a caller's path leads, and the worker's own directory.
OPEN = ("inbox", "uploads", "out", "worker")

_touched: list[Path] | None = None


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    # Hooks stay for ever, so this one looks only while a request is answered.
    if _touched is not None and event in {"open", "os.rename", "os.link", "os.remove", "os.mkdir"}:
        _touched.extend(Path(path) for path in arguments[:2] if isinstance(path, str | Path))


sys.addaudithook(_note)


@contextmanager
def touched(places: list[Path]) -> Iterator[None]:
    """Note every path that this process opens, makes, renames or removes."""
    global _touched  # noqa: PLW0603 - a hook can't be taken off
    _touched = places
    try:
        yield
    finally:
        _touched = None


@pytest.fixture
def caller(engine: ScriptedEngine, tmp_path: Path) -> Caller:
    """A caller whose volume has files and links, and a model's and a cache's directory in out/."""
    root = tmp_path / "around" / "volume"
    for name in FILES:
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(OWN)
    lay_links(root)
    engine.model = replace(engine.model, place=root / "models" / "my-model", max_lora_rank=16)
    environ = {"HF_HOME": f"{root}/out/hf", "DOWNLOAD_DIR": f"{root}/out/my-model"}
    return Caller(engine, root, **environ)


def llm_engine(number: int, **body: Any) -> tuple[str, dict[str, Any]]:
    output = {"output_data_path": f"out/new/{number}", "model_config": {"model": "demo"}}
    return V2, {**output, **body}


def tuning(**body: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/fine_tuning/jobs", {"model": "demo", "training_file": "inbox/a", **body}


# Makes a request of a path: its route and body. The number is another one each time.
KINDS: dict[str, Callable[[str, int], tuple[str, dict[str, Any]]]] = {
    "file": lambda path, _: ("/v1/files", {"path": path}),
    "batch": lambda path, _: ("", {"input_path": path, "endpoint": CHAT}),
    "input": lambda path, number: llm_engine(number, input_data_path=path),
    "output": lambda path, number: llm_engine(number, output_data_path=path, content=[TURNS]),
    "training": lambda path, _: tuning(training_file=path),
    "validation": lambda path, _: tuning(validation_file=path),
}


async def ask(caller: Caller, route: str, body: dict[str, Any]) -> bool:
    """Send a request, read the files that it makes, and run the batch; False: it is refused."""
    post = {"route": route, "method": "POST", "body": body}
    (made,) = await caller.yields(post if route else {"batch": body})
    ids = [made.get(name) for name in ("training_file", "validation_file")]
    for id in (*ids, made.get("id") if made.get("object") == "file" else None):
        if id is not None:
            await caller.yields({"route": f"/v1/files/{id}/content", "method": "GET"})
    if route == V2 and "run_with" in made:
        await caller.yields(made["run_with"]["input"])
    return not made.get("error")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_path_of_two_thousand_is_read_or_written_outside(kind: str, caller: Caller) -> None:
    root, numbers, accepted = caller.root, itertools.count(), 0

    @search(
        max_examples=2_000,
        derandomize=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(path=PATHS)
    def send(path: str) -> None:
        nonlocal accepted
        request, places = KINDS[kind](path.replace("{}", str(root)), next(numbers)), list[Path]()
        with touched(places):
            accepted += runner.run(ask(caller, *request))
        real = {place.resolve() for place in places if place.is_absolute()}
        for place in real:
            if place.is_relative_to(root.parent) or place.parts[1] == "etc":
                assert place.relative_to(root).parts[0] in OPEN
                assert not place.is_relative_to(root / "out" / "hf")
                assert not place.is_relative_to(root / "out" / "my-model")
                assert place not in {root / name for name in HIDDEN}

    with asyncio.Runner() as runner:
        send()
    assert accepted > 15
    # A caller may overwrite none of them, either.
    assert {(root / name).read_bytes() for name in FILES} == {OWN}
