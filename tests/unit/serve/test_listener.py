"""The ports of --serve while the worker starts, and their handing over."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from support import ROOT
from support.processes.background import HUNG_S, wait_until

from worker.errors import MachineUnfit, StartFailed
from worker.serve import listener as module
from worker.serve import starting
from worker.serve.listener import Listener, Ports
from worker.settings.mistakes import SettingsError

# A worker that is killed. A core that it has forked has a copy of the control.
KILLED = """
import os, time
from worker.serve import listener

def opened(host, port):
    found = open_port(host, port)
    print(found.getsockname()[1], flush=True)
    return found

open_port, listener._open = listener._open, opened
held = listener.Listener("127.0.0.1", listener.Ports(0))
if os.fork():
    print("started", flush=True)
time.sleep(100_000)
"""


def is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def ping(
    port: int, path: str = "/ping", method: str = "GET", content: bytes = b""
) -> httpx.Response:
    return httpx.request(method, f"http://127.0.0.1:{port}{path}", content=content, timeout=HUNG_S)


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of the ports that listeners open: the kernel picks them."""
    found: list[int] = []
    open_port = module._open

    def opened(host: str, port: int) -> socket.socket:
        made = open_port(host, port)
        found.append(made.getsockname()[1])
        return made

    monkeypatch.setattr(module, "_open", opened)
    return found


@pytest.fixture
def listener(numbers: list[int]) -> Iterator[Listener]:
    """Listen on two ports, whose numbers ``numbers`` has."""
    listening = Listener("127.0.0.1", Ports(0, 0))
    assert len(numbers) == 2
    yield listening
    listening.close()


@pytest.mark.parametrize(
    ("named", "environ", "ports"),
    [
        (None, {}, Ports(8000)),
        (9000, {"PORT": "80"}, Ports(9000)),
        (0, {"PORT": "80"}, Ports(0)),
        (None, {"PORT": " 80 "}, Ports(80)),
        (None, {"PORT": "80", "PORT_HEALTH": "80"}, Ports(80)),
        (None, {"PORT": "80", "PORT_HEALTH": "8080"}, Ports(80, 8080)),
        (80, {"PORT": "tcp://10.0.0.1:80"}, Ports(80)),
    ],
)
def test_the_command_line_wins_over_the_platforms_variables(
    named: int | None, environ: dict[str, str], ports: Ports
) -> None:
    assert Ports.of(named, environ) == ports


@pytest.mark.parametrize("name", ["PORT", "PORT_HEALTH"])
@pytest.mark.parametrize("value", ["http", "70000", "-1"])
def test_a_variable_that_is_no_port_is_a_mistake(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        Ports.of(None, {name: value})


def test_the_error_for_a_port_in_use_says_what_to_set() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartFailed, match=rf"port {port} can't be opened.*Set --port"):
            Listener("127.0.0.1", Ports(port))


@pytest.mark.usefixtures("listener")
def test_pings_are_204_and_all_else_503_while_the_worker_starts(numbers: list[int]) -> None:
    for port in numbers:
        assert ping(port, "/ping?a=1").status_code == 204
        assert ping(port, method="HEAD").status_code == 204
        # A body of many packets, which nobody reads.
        refused = ping(port, "/v1/chat/completions", "POST", b" " * 5_000_000)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert refused.json()["error"]["retryable"] is True
        assert ping(port, method="POST").status_code == 503
        assert ping(port, "/pingpong").status_code == 503


def test_connections_wait_between_two_servers(listener: Listener, numbers: list[int]) -> None:
    taken, health = listener.take()
    with taken, health, socket.create_connection(("127.0.0.1", numbers[0])) as client:
        client.sendall(b"hello")
        taken.setblocking(True)
        accepted, _ = taken.accept()
        with accepted:
            assert accepted.recv(5) == b"hello"


def test_the_port_closes_with_a_worker_that_is_killed() -> None:
    command = [sys.executable, "-c", KILLED]
    environ = {"PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, start_new_session=True
    ) as worker:
        assert worker.stdout
        port = int(worker.stdout.readline())
        assert worker.stdout.readline() == b"started\n"
        try:
            assert not is_free(port)
            worker.kill()
            wait_until(lambda: is_free(port))
        finally:
            os.killpg(worker.pid, signal.SIGKILL)


@pytest.mark.usefixtures("listener")
def test_a_client_that_sends_no_head_keeps_nobody_else_waiting(numbers: list[int]) -> None:
    address = ("127.0.0.1", numbers[0])
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection(address)).sendall(b"GET /p")
        assert ping(numbers[0]).status_code == 204


def test_whoever_is_accepted_in_the_last_moment_is_answered() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        copy = listening.dup()
        client = stack.enter_context(socket.socket())

        async def hand_over() -> None:
            running = asyncio.create_task(starting.Starting(b"{}").run(theirs, [listening]))
            await asyncio.sleep(0.1)
            # The loop learns of both in one turn.
            client.connect(copy.getsockname())
            client.sendall(b"GET /ping HTTP/1.1\r\n\r\n")
            client.shutdown(socket.SHUT_WR)
            ours.send(b".")
            await running

        # Whoever is not answered by the end of this process's loop never is.
        asyncio.run(hand_over())
        copy.close()
        assert client.recv(12) == b"HTTP/1.1 204"
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        os.close(*fds)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_holder_that_is_gone_is_the_machines_fault(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(module, "HAND_OVER_S", 0.2)
    listener.holder.send_signal(number)
    if number is signal.SIGKILL:
        listener.holder.wait()
    with pytest.raises(MachineUnfit, match="start the worker again"):
        listener.take()
