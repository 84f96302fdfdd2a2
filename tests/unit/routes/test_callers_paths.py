"""Whatever path a request has: nothing outside of the directories for callers is touched."""

import asyncio
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as search
from support.batches import answered, worker_at
from support.callers_paths import PATHS, lay_links
from support.engine.scripted import CHAT, ScriptedEngine, replying

from worker.app import Worker

V2 = "/v2/batch-completions"
TUNING = "/v1/fine_tuning/jobs"
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
def root(tmp_path: Path) -> Path:
    root = tmp_path / "around" / "volume"
    for name in FILES:
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(OWN)
    lay_links(root)
    return root


@pytest.fixture
def worker(root: Path) -> Iterator[Worker]:
    cards = [{"id": "demo", "parent": None}]
    with ScriptedEngine(app=replying(json.dumps({"object": "list", "data": cards}))) as engine:
        engine.model = replace(engine.model, place=root / "models" / "my-model", max_lora_rank=16)
        environ = {"HF_HOME": f"{root}/out/hf", "DOWNLOAD_DIR": f"{root}/out/my-model"}
        yield worker_at(root, engine, RUNPOD_VOLUME_ID="bucket", **environ)


def post(route: str, **body: Any) -> dict[str, Any]:
    return {"route": route, "method": "POST", "body": body}


def llm_engine(number: int, **body: Any) -> dict[str, Any]:
    output = {"output_data_path": f"out/new/{number}", "model_config": {"model": "demo"}}
    return post(V2, **{**output, **body})


# Makes a request of a path; the number is another one each time.
KINDS: dict[str, Callable[[str, int], dict[str, Any]]] = {
    "file": lambda path, _: post("/v1/files", path=path),
    "batch": lambda path, _: {"batch": {"input_path": path, "endpoint": CHAT}},
    "input": lambda path, number: llm_engine(number, input_data_path=path),
    "output": lambda path, number: llm_engine(
        number, output_data_path=path, content=[{"messages": []}]
    ),
    "training": lambda path, _: post(TUNING, model="demo", training_file=path),
    "validation": lambda path, _: post(
        TUNING, model="demo", training_file="inbox/a", validation_file=path
    ),
}


async def ask(worker: Worker, request: dict[str, Any], job_id: str) -> bool:
    """Send a request, read the files that it makes, and run the batch; False: it is refused."""
    made = await answered(worker, request, job_id)
    ids = [made.get(name) for name in ("training_file", "validation_file")]
    for id in (*ids, made.get("id") if made.get("object") == "file" else None):
        if id is not None:
            content = {"route": f"/v1/files/{id}/content", "method": "GET"}
            await answered(worker, content, f"{job_id}-content")
    if request.get("route") == V2 and "run_with" in made:
        await answered(worker, made["run_with"]["input"], f"{job_id}-run")
    return not made.get("error")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_path_of_two_thousand_is_read_or_written_outside(
    kind: str, root: Path, worker: Worker
) -> None:
    around, numbers = root.parent, itertools.count()
    accepted = 0

    @search(
        max_examples=2_000,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(path=PATHS)
    def send(path: str) -> None:
        nonlocal accepted
        number, places = next(numbers), list[Path]()
        request = KINDS[kind](path.replace("{}", str(root)), number)
        with touched(places):
            accepted += runner.run(ask(worker, request, f"job-{number}"))
        real = {place.resolve() for place in places if place.is_absolute()}
        real = {place for place in real if place.is_relative_to(around) or place.parts[1] == "etc"}
        for place in real:
            assert place.relative_to(root).parts[0] in OPEN
            assert not place.is_relative_to(root / "out" / "hf")
            assert not place.is_relative_to(root / "out" / "my-model")
            assert place not in {root / name for name in HIDDEN}

    with asyncio.Runner() as runner:
        send()
    assert accepted > 15
    for name in FILES:
        # A caller may overwrite none of them, either.
        assert (root / name).read_bytes() == OWN
