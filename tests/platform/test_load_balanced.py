"""What a load balancer sees of a worker that serves plain HTTP, from its first second on."""

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from support.ports import free_port
from support.processes.background import Background, wait_until
from support.processes.commands import SCRIPT, WORKER
from support.processes.forked import forked


@pytest.fixture
def port() -> int:
    return free_port()


def pings(port: int) -> Callable[[], int | None]:
    """Return a function that pings; None: nobody listens."""

    def status() -> int | None:
        with contextlib.suppress(httpx.ConnectError):
            return httpx.get(f"http://127.0.0.1:{port}/ping", timeout=60).status_code
        return None

    return status


def core_of(worker: Background) -> int:
    return next(
        pid
        for pid in worker.session()
        if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )


def test_ping_says_how_it_is_from_the_first_second_to_the_death_of_the_core(
    port: int, tmp_path: Path
) -> None:
    status, seen = pings(port), list[int | None]()

    def is_warm() -> bool:
        found = status()
        if not seen or seen[-1] != found:
            seen.append(found)
        return found == 200

    with forked([SCRIPT, "--serve"], {**WORKER, "PORT": str(port)}, tmp_path / "log") as worker:
        wait_until(lambda: is_warm() or worker.process.poll() is not None)
        # Before the process has begun nobody can listen.
        assert [one for one in seen if one is not None] == [204, 200], worker.output
        assert None not in seen[seen.index(204) :]
        os.kill(core_of(worker), signal.SIGKILL)
        wait_until(lambda: status() == 503)
        wait_until(lambda: status() == 200)
        worker.process.terminate()
        assert worker.ended() == 0


def test_a_worker_that_cannot_start_says_why_on_every_route(port: int, tmp_path: Path) -> None:
    environ = {**WORKER, "PORT": str(port), "MAX_MODEL_LEN": "abc"}
    with forked([SCRIPT, "--serve"], environ, tmp_path / "log") as worker:
        wait_until(lambda: pings(port)() == 503)
        for route in ("/v1/chat/completions", "/ping"):
            answer = httpx.get(f"http://127.0.0.1:{port}{route}")
            error = answer.json()["error"]
            assert (answer.status_code, error["retryable"]) == (503, False)
            assert "MAX_MODEL_LEN = 'abc'" in error["message"]
        worker.process.terminate()
        assert worker.ended() == 1


def test_a_port_that_is_taken_ends_the_start_before_anything_is_loaded(
    port: int, tmp_path: Path
) -> None:
    with (
        socket.create_server(("127.0.0.1", port)),
        forked([SCRIPT, "--serve"], {**WORKER, "PORT": str(port)}, tmp_path / "log") as worker,
    ):
        assert worker.ended() == 1
        assert f"port {port} can't be opened" in worker.output
        assert "start-up: import" not in worker.output
