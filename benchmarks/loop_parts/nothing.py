"""Jobs that are answered without any computation, to measure the cost of the loop alone."""

import statistics
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import psutil
import streaming

from loop_parts.endpoint import start_endpoint

CALLERS = 64
JOBS = 2_000  # per round
# A worker whose engine immediately answers any ordinary prompt with one token.
WORKER = [sys.executable, "-u", str(Path(streaming.__file__)), "--worker"]


async def measure(args: Namespace) -> dict[str, Any]:
    """Print the jobs per second, and the CPU times of the worker and of platform and callers."""
    rates: list[float] = []
    cpu: dict[str, list[float]] = {"worker": [], "platform and callers": []}
    async with start_endpoint({}, WORKER) as endpoint:
        pids = dict(zip(cpu, (endpoint.processes[0].pid, None), strict=True))
        await endpoint.load(CALLERS, CALLERS, tokens=1)
        for _ in range(args.rounds):
            before = {name: _cpu_s(pid) for name, pid in pids.items()}
            began = time.monotonic()
            load = await endpoint.load(JOBS, CALLERS, tokens=1)
            seconds = time.monotonic() - began
            rates.append(load.rate)
            for name, pid in pids.items():
                cpu[name].append((_cpu_s(pid) - before[name]) / seconds)
    rate = statistics.median(rates)
    cores = {name: statistics.median(values) for name, values in cpu.items()}
    print(f"  {rate:,.0f} jobs/s; cores: {', '.join(f'{n} {v:.2f}' for n, v in cores.items())}")
    return {"jobs_per_s": rates, "cores": cpu}


def _cpu_s(pid: int | None) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
