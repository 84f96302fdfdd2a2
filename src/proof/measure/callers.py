"""The callers of a load, in this process or in several, so that no process limits the load.

    PYTHONPATH=src python -m proof.measure.callers BASE ARGUMENTS

The command prints "ready", waits for a line, sends its requests, and prints the answers.
"""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace

from pydantic import TypeAdapter

from proof.measure import http_load
from proof.measure.figures import Answer, Load
from proof.measure.processes import ROOT, Lost, next_line, run_process

ANSWERS = TypeAdapter(list[Answer])


async def send(base: str, models: Sequence[str], load: Load) -> list[Answer]:
    """Send the requests of a load from all its processes, as ``http_load.answers`` does.

    Raises:
        Lost: If a response is an error, or tokens are missing.
    """
    if load.processes == 1:
        return await http_load.answers(base, models, load)
    share = replace(
        load,
        callers=load.callers // load.processes,
        requests=load.requests // load.processes,
        processes=1,
    )
    async with AsyncExitStack() as stack:
        processes = []
        for number in range(load.processes):
            arguments = json.dumps({"models": list(models), "load": asdict(share), "seed": number})
            command = (sys.executable, "-m", __name__, base, arguments)
            environ = {"PYTHONPATH": str(ROOT / "src")}
            running = run_process(command, environ, stdin=PIPE)
            processes.append(await stack.enter_async_context(running))
        for process in processes:
            await next_line(process, "ready")
        # All are awaited before an error is raised.
        ended = await asyncio.gather(*map(_finish, processes), return_exceptions=True)
    return [answer for each in ended for answer in _result(each)]


def _result(ended: list[Answer] | BaseException) -> list[Answer]:
    if isinstance(ended, BaseException):
        raise ended
    return ended


async def _finish(process: Process) -> list[Answer]:
    output, _ = await process.communicate(b"\n")
    if process.returncode:
        raise Lost(f"a caller failed: {output.decode().strip()}")
    return ANSWERS.validate_json(output)


def main() -> int:
    base, arguments = sys.argv[1:]
    parsed = json.loads(arguments)
    print("ready", flush=True)
    sys.stdin.readline()
    load = Load(**parsed["load"])
    try:
        answers = asyncio.run(http_load.answers(base, parsed["models"], load, parsed["seed"]))
    except Lost as lost:
        print(lost)
        return 1
    sys.stdout.write(ANSWERS.dump_json(answers).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
