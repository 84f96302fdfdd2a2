"""What the scripts share, which call `LLM` and end by printing their results."""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

from worker.app import Worker
from worker.engine import Engines
from worker.errors import WorkerError
from worker.settings import Settings


def texts(outputs: list[Any]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def refusal(call: Callable[[], Any]) -> dict[str, Any]:
    """Return how a call fails: with the status of a refused request, or an exception's name."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the tests say which one it is
        status = error.status if isinstance(error, WorkerError) else 500
        return {"kind": status if status < 500 else type(error).__name__, "message": str(error)}
    return {"kind": None}


def raw(llm: Any, payload: dict[str, Any]) -> list[Any]:
    """Return all yields of a job on the engine of an `LLM`."""
    worker = Worker(Engines(llm._engine), Settings.from_env({"MODEL_NAME": "demo"}))

    async def handle() -> list[Any]:
        return [chunk async for chunk in worker.handle({"id": "x", "input": payload})]

    return asyncio.run(handle())


def report(**results: Any) -> None:
    """Print the results, the last thing that a script does."""
    sys.stdout.write(json.dumps(results) + "\n")
    sys.stdout.flush()
