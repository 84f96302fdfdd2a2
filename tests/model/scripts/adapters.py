"""Runs an engine with LoRA: answers every line of its input with a line, all concurrently."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from support.models.lora import MOST_RANK

from worker.engine import Engine
from worker.errors import WorkerError
from worker.job import RawJob
from worker.settings import Settings

# More than the tests load at once: on a CPU vLLM would mix them up.
SLOTS = 16


async def do(engine: Engine, request: dict[str, Any]) -> Any:
    if "job" in request:
        job = RawJob.read(request["job"])
        return "".join([delta.text async for delta in engine.generate(job, request["id"])])
    if "path" in request:
        parts = engine.call(request["path"], request.get("body"), request["id"])
        return json.loads(b"".join([part async for part in parts if isinstance(part, bytes)]))
    if "volume" in request:
        return await engine.adapters_on_volume()
    for name in request.get("unload", ()):
        await engine.unload(name)
    for name in request.get("adopt", ()):
        await engine.adopt(name)
    return None


async def answer(engine: Engine, request: dict[str, Any]) -> None:
    try:
        result = {"answer": await do(engine, request)}
    except WorkerError as error:
        result = {"status": error.status, "message": error.message}
    sys.stdout.write(json.dumps({"id": request["id"], **result}) + "\n")
    sys.stdout.flush()


def main(model: str, volume: Path) -> None:
    # Imported here, as in production: vLLM reads the environment.
    from worker.engine import launch, options  # noqa: PLC0415 - see above

    settings = Settings.from_env({"MODEL_NAME": model, "BASE_PATH": str(volume)})
    environ = {
        "MODEL": model,
        "MAX_MODEL_LEN": "1024",
        "ENABLE_LORA": "1",
        "MAX_LORA_RANK": str(MOST_RANK),
        "MAX_LORAS": str(SLOTS),
    }
    arguments = options.Options().parse(environ)
    with launch.launched(settings, [arguments]) as engines:
        running = [
            asyncio.run_coroutine_threadsafe(answer(engines.main, json.loads(line)), engines.loop)
            for line in sys.stdin
        ]
        for answering in running:
            answering.result()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
