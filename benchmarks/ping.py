"""Measures the responses to a load balancer's pings at startup and when the core dies.

    python benchmarks/ping.py [--rounds 5] [--seconds 60] [--model .models/demo]

The worker runs with ``--serve``. A hub on loopback sends the model so slowly that the startup takes
``--seconds``. A thread pings ten times per second, beginning with the exec. The important intervals
are measured with faster pings: from the log line of the last phase to the first 200, and from
``kill -9`` of the core to the first 503.
"""

import contextlib
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path

import bench
from download import NAME, repository  # makes `tests` importable
from support.hub.server import Hub
from support.processes.background import BackgroundProcess, start_command
from support.processes.commands import HANDLER, HOME

PORT = 8475
TIMEOUT_S = 5.0
# Seconds between pings of a load balancer, and between the faster ones.
PING_S = 0.1
FAST_PING_S = 0.005
WARM_UP_LINE = "start-up: warm-up"


def ping() -> int | None:
    """Return the status of a ping; None if it was refused or aborted."""
    connection = HTTPConnection("127.0.0.1", PORT, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/ping")
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


@dataclass
class Pings:
    """The statuses and durations of ten pings per second."""

    started_at: float = field(default_factory=time.monotonic)
    # For each ping: the seconds from the exec to the response, and the status.
    statuses: list[tuple[float, int | None]] = field(default_factory=list)
    durations_s: list[float] = field(default_factory=list)

    @contextlib.contextmanager
    def ping_in_background(self) -> Iterator[None]:
        """Ping in a thread during the block."""
        stopped = threading.Event()
        thread = threading.Thread(target=self._ping, args=(stopped,))
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def _ping(self, stopped: threading.Event) -> None:
        while not stopped.wait(PING_S):
            sent = time.monotonic()
            status = ping()
            now = time.monotonic()
            self.durations_s.append(now - sent)
            self.statuses.append((now - self.started_at, status))

    @property
    def first_answer_s(self) -> float:
        """Seconds to the first response with 204."""
        return next(at for at, status in self.statuses if status == 204)

    @property
    def failed(self) -> int:
        """Number of pings that were refused or aborted after the first response."""
        return sum(status is None for at, status in self.statuses if at > self.first_answer_s)


def wait_for(condition: Callable[[], bool], worker: BackgroundProcess) -> float:
    """Wait until a condition holds; return the time by ``time.monotonic``."""
    while not condition():
        if worker.process.poll() is not None:
            sys.exit(worker.output)
        time.sleep(FAST_PING_S)
    return time.monotonic()


def find_core_pid(worker: BackgroundProcess) -> int:
    """Return the process id of the engine core."""
    return next(
        pid
        for pid in worker.session_pids()
        if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )


def measure_round(hub: Hub, folder: Path) -> dict[str, float]:
    """Start a worker on an empty volume, and kill its core; return seconds and counts."""
    environ = {
        **HOME,
        "MODEL_NAME": NAME,
        "BASE_PATH": str(folder),
        "HF_ENDPOINT": hub.endpoint,
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    command = [*HANDLER, "--serve", "--port", str(PORT)]
    pings = Pings()
    with start_command(command, environ, folder / "log") as worker, pings.ping_in_background():
        warmed_up_at = wait_for(lambda: WARM_UP_LINE in worker.output, worker)
        ready_at = wait_for(lambda: ping() == 200, worker)
        core = find_core_pid(worker)
        killed_at = time.monotonic()
        os.kill(core, signal.SIGKILL)
        failed_at = wait_for(lambda: ping() == 503, worker)
        time.sleep(2 * PING_S)
    return {
        "exec to 204": pings.first_answer_s,
        "exec to warm": warmed_up_at - pings.started_at,
        "warm to 200": ready_at - warmed_up_at,
        "kill -9 to 503": failed_at - killed_at,
        "slowest ping": max(pings.durations_s),
        "lost": float(pings.failed),
    }


def main() -> None:
    """Print the median and the maximum of each figure."""
    parser = bench.options(__doc__, rounds=5)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--model", type=Path, default=bench.DEMO_MODEL)
    options = parser.parse_args()
    rounds = []
    with repository(options.model) as (hub, size), tempfile.TemporaryDirectory() as folders:
        for number in range(options.rounds):
            folder = Path(folders) / str(number)
            folder.mkdir()
            hub.throttle = size / options.seconds
            rounds.append(measure_round(hub, folder))
            print(number + 1, rounds[-1], flush=True)
    for name in rounds[0]:
        figures = [one[name] for one in rounds]
        print(f"{name:16} {statistics.median(figures):7.3f} {max(figures):7.3f}")


if __name__ == "__main__":
    main()
