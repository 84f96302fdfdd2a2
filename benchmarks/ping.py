"""Measures what a load balancer's pings see of a start with ``--serve``, and of its core's death.

    python benchmarks/ping.py [--rounds 5] [--seconds 60] [--model .models/demo]

A hub on loopback sends the model so slowly that the start takes that long. A thread pings ten times
a second from the exec on. The moments that count are looked at more closely: from the last phase's
line in the log to the first 200, and from ``kill -9`` of the core to the first 503.
"""

import argparse
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

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from download import NAME, repository  # noqa: E402 - found by the line above
from support.hub.server import Hub  # noqa: E402 - likewise
from support.processes.background import Background, background  # noqa: E402 - likewise
from support.processes.commands import HANDLER, HOME  # noqa: E402 - likewise

PORT = 8475
PATIENCE_S = 5.0
# Seconds between pings of a load balancer, and between those that look at a moment.
PING_S = 0.1
CLOSE_S = 0.005
WARM = "start-up: warm-up"


def ping() -> int | None:
    """Return the status of a ping; None: refused, or broken off."""
    connection = HTTPConnection("127.0.0.1", PORT, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/ping")
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


@dataclass
class Pings:
    """What pings ten times a second are answered, and how long each took."""

    begun: float = field(default_factory=time.monotonic)
    # Of each ping: the seconds since the exec at its answer, and its status.
    seen: list[tuple[float, int | None]] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """Ping in a thread for the time of this block."""
        over = threading.Event()
        thread = threading.Thread(target=self._ping, args=(over,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _ping(self, over: threading.Event) -> None:
        while not over.wait(PING_S):
            sent = time.monotonic()
            status = ping()
            now = time.monotonic()
            self.took_s.append(now - sent)
            self.seen.append((now - self.begun, status))

    @property
    def first(self) -> float:
        """When the first was answered with 204."""
        return next(at for at, status in self.seen if status == 204)

    @property
    def lost(self) -> int:
        """How many were refused or broken off after the first answer."""
        return sum(status is None for at, status in self.seen if at > self.first)


def waited_for(holds: Callable[[], bool], worker: Background) -> float:
    """Wait until something holds; return when, by ``time.monotonic``."""
    while not holds():
        if worker.process.poll() is not None:
            sys.exit(worker.output)
        time.sleep(CLOSE_S)
    return time.monotonic()


def core_of(worker: Background) -> int:
    """Return the id of the core's process."""
    return next(
        pid
        for pid in worker.session()
        if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )


def round_(served: Hub, folder: Path) -> dict[str, float]:
    """Start a worker on an empty volume, and kill its core; return seconds and counts."""
    environ = {
        **HOME,
        "MODEL_NAME": NAME,
        "BASE_PATH": str(folder),
        "HF_ENDPOINT": served.endpoint,
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    command = [*HANDLER, "--serve", "--port", str(PORT)]
    pings = Pings()
    with background(command, environ, folder / "log") as worker, pings.going_on():
        warm = waited_for(lambda: WARM in worker.output, worker)
        ready = waited_for(lambda: ping() == 200, worker)
        core = core_of(worker)
        killed = time.monotonic()
        os.kill(core, signal.SIGKILL)
        dead = waited_for(lambda: ping() == 503, worker)
        time.sleep(2 * PING_S)
    return {
        "exec to 204": pings.first,
        "exec to warm": warm - pings.begun,
        "warm to 200": ready - warm,
        "kill -9 to 503": dead - killed,
        "slowest ping": max(pings.took_s),
        "lost": float(pings.lost),
    }


def main() -> None:
    """Print the median and the worst of each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--model", type=Path, default=ROOT / ".models" / "demo")
    options = parser.parse_args()
    rounds = []
    with repository(options.model) as (served, size), tempfile.TemporaryDirectory() as folders:
        for number in range(options.rounds):
            folder = Path(folders) / str(number)
            folder.mkdir()
            served.throttle = size / options.seconds
            rounds.append(round_(served, folder))
            print(number + 1, rounds[-1], flush=True)
    for name in rounds[0]:
        figures = [one[name] for one in rounds]
        print(f"{name:16} {statistics.median(figures):7.3f} {max(figures):7.3f}")


if __name__ == "__main__":
    main()
