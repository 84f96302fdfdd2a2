"""The platform on loopback, whose endpoints are emulators with real workers.

``PYTHONPATH=src:tests python -m support.runpod_api.emulated`` serves it until Ctrl-C.
"""

import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal

from emulator import Emulator, Options
from emulator.fleet import Fleet
from emulator.job_queue import Worker
from support.processes.commands import DEMO, HANDLER, HOME
from support.runpod_api.endpoints import Body, volume
from support.runpod_api.server import KEY, Runpod, runpod_api

VOLUME = "volume1234"
# Seconds until the emulator's gateway gives up; longer than all calls of a worker that has started.
GATEWAY_TIMEOUT_S = 15.0
# Seconds that a removed worker gets between SIGTERM and SIGKILL, and its own limit for its jobs.
_GRACE_S, _JOBS_GRACE_S = 30.0, "3"
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

# Returns the environment of an endpoint's workers for its request.
EnvironFunction = Callable[[Body], Mapping[str, str]]


@dataclass
class FleetEndpoint:
    """An endpoint's emulator and workers. Its methods run on the emulators' event loop."""

    emulator: Emulator
    command: Sequence[str]
    environ: Mapping[str, str]
    logs: Path
    _fleet: Fleet | None = None
    _removal: asyncio.Task[None] | None = None

    async def scale(self, count: int) -> None:
        """Start workers, unless some run already, or begin to remove all."""
        if count and self.command:
            if self._removal:
                await self._removal
            if self._fleet is None:
                self._fleet = Fleet(self.emulator, self.command, self.environ, self.logs, print_log)
                self._fleet.start_workers(count)
        elif self._fleet and not count:
            self._removal = asyncio.create_task(self.remove_workers(_GRACE_S))

    async def remove_workers(self, grace_s: float) -> None:
        if (fleet := self._fleet) is None:
            return
        workers = self.emulator.queue.workers
        if grace_s:
            pairs = zip(workers.values(), fleet._supervisors, strict=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await asyncio.gather(*(_stop_worker(*pair) for pair in pairs))
        self._fleet = None
        await fleet.__aexit__(None, None, None)
        workers.clear()

    def list_workers(self) -> list[Body]:
        queue = self.emulator.queue
        busy = {job.worker_id for job in queue.jobs.values() if job.status == "IN_PROGRESS"}
        states = {id: each.state(busy=id in busy) for id, each in queue.workers.items()}
        return [
            {"id": id, "status": state.upper(), "gpuCount": 1, "isStale": False}
            for id, state in states.items()
        ]

    def follow_log(self, worker_id: str) -> Iterator[dict[str, str]]:
        """Yield the lines of a worker's log until the worker is gone."""
        with (self.logs / f"{worker_id}.log").open(errors="replace") as log:
            while True:
                is_gone = worker_id not in self.emulator.queue.workers
                for line in log:
                    yield {"ts": datetime.now(UTC).isoformat(), "line": line.rstrip("\n")}
                if is_gone:
                    return
                time.sleep(0.05)


@dataclass
class EmulatedRunpod(Runpod):
    """A platform whose endpoints are emulators with workers.

    Attributes:
        queue_url: URL of the queues.
        portal: The event loop of the emulators.
        command: Command of a worker; empty if no worker ever starts.
        environ: Function that returns the environment of an endpoint's workers.
        options: Options of the emulators.
        folder: Directory for logs and the network volume.
        fleets: Emulated endpoints, by their ids.
    """

    queue_url: str = ""
    portal: BlockingPortal = field(default_factory=BlockingPortal)
    command: Sequence[str] = ()
    environ: EnvironFunction = field(default=lambda _: HOME)
    options: dict[str, Any] = field(default_factory=dict)
    folder: Path = Path()
    fleets: dict[str, FleetEndpoint] = field(default_factory=dict)
    _stacks: dict[str, AsyncExitStack] = field(default_factory=dict)

    def rest(
        self, verb: str, path: str, body: Body | None, last_event_id: str | None
    ) -> tuple[int, Any]:
        identity, *below = [*path.removeprefix("/v2/serverless").split("/")[1:], "", ""][:3]
        if below[0] == "workers" and identity in self.fleets:
            fleet = self.fleets[identity]
            if path.endswith("/logs"):
                return 200, fleet.follow_log(path.split("/")[-2])
            self.workers = self.portal.call(fleet.list_workers)
        status, content = super().rest(verb, path, body, last_event_id)
        if verb == "DELETE":
            self.portal.call(self.stop_fleet, identity)
        elif verb in ("POST", "PATCH"):
            self.portal.call(self._start_fleet, content)
        return status, content

    async def _start_fleet(self, endpoint: Body) -> None:
        identity = endpoint["id"]
        if identity not in self.fleets:
            options = {"gateway_timeout_s": GATEWAY_TIMEOUT_S, **self.options}
            stack = self._stacks[identity] = AsyncExitStack()
            emulator = Emulator(Options(endpoint=identity, api_key=KEY, **options))
            await stack.enter_async_context(emulator)
            logs = self.folder / identity
            logs.mkdir()
            environ = {**self.environ(endpoint)}
            if endpoint["networkVolumes"]:
                environ["BASE_PATH"] = str(self.folder / "volume")
            self.fleets[identity] = FleetEndpoint(emulator, self.command, environ, logs)
        await self.fleets[identity].scale(endpoint["workers"]["max"])

    async def stop_fleet(self, identity: str) -> None:
        await self.fleets.pop(identity).remove_workers(0)
        await self._stacks.pop(identity).aclose()

    async def stop(self) -> None:
        for identity in [*self.fleets]:
            await self.stop_fleet(identity)

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a connection with one request to the emulator of the endpoint in its path."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            first, *headers = head.split(b"\r\n")
            fleet = self.fleets.get(first.split(b"/")[2].decode())
            if fleet is None:
                writer.write(_NOT_FOUND)
                return
            port = int(fleet.emulator.root_url.rpartition(":")[2])
            upstream, request = await asyncio.open_connection("127.0.0.1", port)
            headers = [line for line in headers if not line.lower().startswith(b"connection:")]
            request.write(b"\r\n".join([first, b"Connection: close", *headers]))
            await _join(reader, request, upstream, writer)
            request.close()
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


async def _stop_worker(worker: Worker, supervisor: asyncio.Task[None]) -> None:
    """Send SIGTERM to a worker and wait for its exit; don't restart it."""
    if worker.process is not None:
        worker.process.send_signal(signal.SIGTERM)
    while worker.process is not None:
        await asyncio.sleep(0.02)
    supervisor.cancel()


async def _join(
    reader: asyncio.StreamReader,
    request: asyncio.StreamWriter,
    upstream: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Copy bytes in both directions until either side closes its connection."""

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while part := await source.read(65536):
                sink.write(part)
                await sink.drain()

    copies = {
        asyncio.create_task(copy(reader, request)),
        asyncio.create_task(copy(upstream, writer)),
    }
    _, pending = await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()


def demo_environ(endpoint: Body) -> dict[str, str]:
    """Return the environment of workers that serve the demo model under the endpoint's name."""
    env = endpoint["env"]
    names = {"MODEL_NAME": str(DEMO), "SERVED_MODEL_NAME": env["MODEL_NAME"]}
    return {**HOME, **env, **names, "SHUTDOWN_GRACE_S": _JOBS_GRACE_S}


@contextmanager
def emulated_runpod(
    folder: Path,
    command: Sequence[str] = HANDLER,
    environ: EnvironFunction = demo_environ,
    **options: Any,
) -> Iterator[EmulatedRunpod]:
    """Run a platform whose endpoints are emulators, until the end of the block."""
    (folder / "volume").mkdir()
    with start_blocking_portal() as portal:
        state = EmulatedRunpod(
            portal=portal, command=command, environ=environ, options=options, folder=folder
        )
        state.volumes = [volume(VOLUME, "US-KS-2")]
        server = portal.call(asyncio.start_server, state.forward, "127.0.0.1", 0)
        state.queue_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v2"
        with runpod_api(state):
            try:
                yield state
            finally:
                portal.call(state.stop)
                portal.call(server.close)


def print_log(text: str) -> None:
    if __name__ == "__main__":
        sys.stdout.write(f"{text}\n")


def main() -> None:
    """Serve the platform, and print the command that proves the worker there."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder, emulated_runpod(Path(folder)) as running:
        options = f"--api-url {running.url}/v2 --queue-url {running.queue_url} --volume {VOLUME}"
        sys.stdout.write(
            f"RUNPOD_API_KEY={KEY} .venv/bin/nox -s prove_platform -- "
            f"--image any/image:1 {options}\n"
        )
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)


if __name__ == "__main__":
    main()
