"""The process of the callers: a minimal platform for the worker, or clients of vLLM's server.

Its CPU time is measured, since it shares the machine with the side. For each line of its input,
which is an order, it prints "begin" and "end" for the window of the load, and "measured" with the
figures.

    python -m gpu_load.run_callers platform PORT   # its port, for the worker
    python -m gpu_load.run_callers clients PORT    # the server's port
"""

import asyncio
import json
import sys

import bench
import uvloop

from gpu_load.callers import Callers
from gpu_load.clients import Clients
from gpu_load.loads import Order
from gpu_load.platform import Platform, WorkerConnection


async def main(kind: str, port: int) -> None:
    platform = Platform()
    if kind == "platform":
        loop = asyncio.get_running_loop()
        await loop.create_server(lambda: WorkerConnection(platform), "127.0.0.1", port)
    number = 1
    while line := await asyncio.to_thread(sys.stdin.readline):
        link = platform if kind == "platform" else Clients(port)
        link.callers = callers = Callers(Order.from_json(line), number, link)
        figures = await callers.run(bench.print_line)
        number = callers.next_number
        bench.print_line("measured", json.dumps(figures, separators=(",", ":")))


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
