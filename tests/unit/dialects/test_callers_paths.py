"""Paths in requests: the worker opens nothing outside of the directories for callers."""

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
from support.tables.callers_paths import PATHS, make_links

V2 = "/v2/batch-completions"
TURNS: dict[str, Any] = {"messages": []}
# The content of every file on the volume.
FILE_CONTENT = b'[{"prompt": "a", "response": "b"}]\n'
HIDDEN_FILES = ("inbox/.env", "out/.cache/token", "uploads/.cache/.env")
FILES = (
    *HIDDEN_FILES,
    *("inbox/a", "inbox/deep/config.json", "uploads/a", "out/my-model/config.json", "out/hf/token"),
    *("models/my-model/config.json", "adapters/my-model/config.json", ".cache/token", ".env"),
    *("worker/files/token", "secret/.env", "../secret", "../models/config.json"),
)
# Directories that a request may touch: those for callers' paths, and the worker's own.
ALLOWED_DIRECTORIES = ("inbox", "uploads", "out", "worker")

_touched_paths: list[Path] | None = None


def _record_paths(event: str, arguments: tuple[Any, ...]) -> None:
    # Audit hooks can't be removed, so this one records paths only during a request.
    if _touched_paths is not None and event in {
        "open",
        "os.rename",
        "os.link",
        "os.remove",
        "os.mkdir",
    }:
        _touched_paths.extend(Path(path) for path in arguments[:2] if isinstance(path, str | Path))


sys.addaudithook(_record_paths)


@contextmanager
def record_touched_paths(paths: list[Path]) -> Iterator[None]:
    """Record every path that this process opens, creates, links, renames or removes."""
    global _touched_paths  # noqa: PLW0603 - a hook can't be removed
    _touched_paths = paths
    try:
        yield
    finally:
        _touched_paths = None


@pytest.fixture
def caller(engine: ScriptedEngine, tmp_path: Path) -> Caller:
    """A caller whose volume has files and links, and directories of a model and a cache in out/."""
    root = tmp_path / "around" / "volume"
    for name in FILES:
        file_path = root / name
        file_path.parent.mkdir(parents=True, exist_ok=True)
        file_path.write_bytes(FILE_CONTENT)
    make_links(root)
    engine.model = replace(engine.model, directory=root / "models" / "my-model", max_lora_rank=16)
    environ = {"HF_HOME": f"{root}/out/hf", "DOWNLOAD_DIR": f"{root}/out/my-model"}
    return Caller(engine, root, **environ)


def llm_engine_request(number: int, **body: Any) -> tuple[str, dict[str, Any]]:
    output = {"output_data_path": f"out/new/{number}", "model_config": {"model": "demo"}}
    return V2, {**output, **body}


def fine_tune_request(**body: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/fine_tuning/jobs", {"model": "demo", "training_file": "inbox/a", **body}


# Functions that return a route and a body with a path. They get a new number for each request.
REQUESTS: dict[str, Callable[[str, int], tuple[str, dict[str, Any]]]] = {
    "file": lambda path, _: ("/v1/files", {"path": path}),
    "batch": lambda path, _: ("", {"input_path": path, "endpoint": CHAT}),
    "input": lambda path, number: llm_engine_request(number, input_data_path=path),
    "output": lambda path, number: llm_engine_request(
        number, output_data_path=path, content=[TURNS]
    ),
    "training": lambda path, _: fine_tune_request(training_file=path),
    "validation": lambda path, _: fine_tune_request(validation_file=path),
}


async def send_request(caller: Caller, route: str, body: dict[str, Any]) -> bool:
    """Send a request, read the files that it creates, and run its batch.

    Returns:
        False if the request was refused.
    """
    post = {"route": route, "method": "POST", "body": body}
    (response,) = await caller.yields(post if route else {"batch": body})
    ids = [response.get(name) for name in ("training_file", "validation_file")]
    for id in (*ids, response.get("id") if response.get("object") == "file" else None):
        if id is not None:
            await caller.yields({"route": f"/v1/files/{id}/content", "method": "GET"})
    if route == V2 and "run_with" in response:
        await caller.yields(response["run_with"]["input"])
    return not response.get("error")


@pytest.mark.slow
@pytest.mark.parametrize("kind", REQUESTS)
def test_no_path_in_a_request_leads_out_of_the_callers_directories(
    kind: str, caller: Caller
) -> None:
    root, numbers, accepted = caller.root, itertools.count(), 0

    @search(
        max_examples=2_000,
        derandomize=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(path=PATHS)
    def send(path: str) -> None:
        nonlocal accepted
        request = REQUESTS[kind](path.replace("{}", str(root)), next(numbers))
        touched_paths: list[Path] = []
        with record_touched_paths(touched_paths):
            accepted += runner.run(send_request(caller, *request))
        resolved_paths = {
            touched_path.resolve() for touched_path in touched_paths if touched_path.is_absolute()
        }
        for touched_path in resolved_paths:
            if touched_path.is_relative_to(root.parent) or touched_path.parts[1] == "etc":
                assert touched_path.relative_to(root).parts[0] in ALLOWED_DIRECTORIES
                assert not touched_path.is_relative_to(root / "out" / "hf")
                assert not touched_path.is_relative_to(root / "out" / "my-model")
                assert touched_path not in {root / name for name in HIDDEN_FILES}

    with asyncio.Runner() as runner:
        send()
    assert accepted > 15
    # Callers can't overwrite any file either.
    assert {(root / name).read_bytes() for name in FILES} == {FILE_CONTENT}
