"""Functions of the scripts that use and check `LLM` and print their failures as the last line."""

import asyncio
import json
import re
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from worker.app import Worker
from worker.engine import Engines
from worker.errors import WorkerError
from worker.settings import Settings


def texts(outputs: list[Any]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def collect_failures(*parts: partial[None]) -> dict[str, str]:
    """Call parts of a script; return the tracebacks of failed parts by the names of the parts."""
    failed = {}
    for part in parts:
        try:
            part()
        except Exception:  # noqa: BLE001 - the test reports it
            failed[part.func.__name__] = traceback.format_exc()
    return failed


def check_refusal(call: Callable[..., Any], kind: str | int, *words: str, **arguments: Any) -> None:
    """Check that a call fails with the status of a refused request or the name of an exception."""
    with pytest.raises(Exception, match=re.escape(words[0])) as caught:
        call(**arguments)
    error = caught.value
    status = error.status if isinstance(error, WorkerError) else 500
    assert kind == (status if status < 500 else type(error).__name__), repr(error)
    assert all(word in str(error) for word in words), str(error)


def run_job(llm: Any, payload: dict[str, Any]) -> list[Any]:
    """Return all chunks of a job on the engine of an `LLM`."""
    worker = Worker(Engines(llm._engine), Settings.from_env({"MODEL_NAME": "demo"}))

    async def handle() -> list[Any]:
        return [chunk async for chunk in worker.handle({"id": "x", "input": payload})]

    return asyncio.run(handle())


def report(**results: Any) -> None:
    """Print the results as the last line of a script."""
    sys.stdout.write(json.dumps(results) + "\n")
    sys.stdout.flush()
