"""The ports of --serve while the worker starts, and their handover to the server."""

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
from worker.serve import startup_server
from worker.serve.listener import Ports, StartupListener, check_console_access
from worker.settings.mistakes import SettingsError

# A worker that the test kills. The core that it has forked has a copy of the control socket.
KILLED_WORKER = """
import os, time
from worker.serve import listener

def open_and_print(host, port):
    listening_socket = open_port(host, port)
    print(listening_socket.getsockname()[1], flush=True)
    return listening_socket

open_port, listener._open_port = listener._open_port, open_and_print
startup_listener = listener.StartupListener("127.0.0.1", listener.Ports(0))
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
def port_numbers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the ports that listeners open; the kernel picks them."""
    port_numbers: list[int] = []
    open_port = module._open_port

    def open_and_record(host: str, port: int) -> socket.socket:
        listening_socket = open_port(host, port)
        port_numbers.append(listening_socket.getsockname()[1])
        return listening_socket

    monkeypatch.setattr(module, "_open_port", open_and_record)
    return port_numbers


@pytest.fixture
def listener(port_numbers: list[int]) -> Iterator[StartupListener]:
    """A listener on two ports, whose numbers are in ``port_numbers``."""
    startup_listener = StartupListener("127.0.0.1", Ports(0, 0))
    assert len(port_numbers) == 2
    yield startup_listener
    startup_listener.close()


@pytest.mark.parametrize(
    ("option", "environ", "ports"),
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
def test_the_command_line_overrides_the_platforms_variables(
    option: int | None, environ: dict[str, str], ports: Ports
) -> None:
    assert Ports.choose(option, environ) == ports


@pytest.mark.parametrize("name", ["PORT", "PORT_HEALTH"])
@pytest.mark.parametrize("value", ["http", "70000", "-1"])
def test_a_variable_that_is_no_port_is_a_mistake(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        Ports.choose(None, {name: value})


def test_the_error_for_a_port_in_use_names_the_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartFailed, match=rf"port {port} can't be opened.*Set --port"):
            StartupListener("127.0.0.1", Ports(port))


@pytest.mark.usefixtures("listener")
def test_pings_are_204_and_other_requests_503_while_the_worker_starts(
    port_numbers: list[int],
) -> None:
    for port in port_numbers:
        assert ping(port, "/ping?a=1").status_code == 204
        assert ping(port, method="HEAD").status_code == 204
        # A body of many packets, which the server doesn't read.
        response = ping(port, "/v1/chat/completions", "POST", b" " * 5_000_000)
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
        assert response.json()["error"]["retryable"] is True
        assert ping(port, method="POST").status_code == 503
        assert ping(port, "/pingpong").status_code == 503


def test_connections_wait_during_the_handover_to_the_server(
    listener: StartupListener, port_numbers: list[int]
) -> None:
    main_socket, health_socket = listener.take_sockets()
    with (
        main_socket,
        health_socket,
        socket.create_connection(("127.0.0.1", port_numbers[0])) as client,
    ):
        client.sendall(b"hello")
        main_socket.setblocking(True)
        connection, _ = main_socket.accept()
        with connection:
            assert connection.recv(5) == b"hello"


def test_the_port_is_closed_when_the_worker_is_killed() -> None:
    command = [sys.executable, "-c", KILLED_WORKER]
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
def test_clients_with_an_incomplete_head_do_not_delay_others(port_numbers: list[int]) -> None:
    address = ("127.0.0.1", port_numbers[0])
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection(address)).sendall(b"GET /p")
        assert ping(port_numbers[0]).status_code == 204


def test_a_connection_accepted_during_the_handover_is_answered() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, ExitStack() as stack:
        listening_socket = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        copy = listening_socket.dup()
        client = stack.enter_context(socket.socket())

        async def hand_over() -> None:
            server_task = asyncio.create_task(
                startup_server.StartupServer(b"{}").run(theirs, [listening_socket])
            )
            await asyncio.sleep(0.1)
            # The loop gets both events in one turn.
            client.connect(copy.getsockname())
            client.sendall(b"GET /ping HTTP/1.1\r\n\r\n")
            client.shutdown(socket.SHUT_WR)
            ours.send(b".")
            await server_task

        # A client without a response at the end of this loop never gets one.
        asyncio.run(hand_over())
        copy.close()
        assert client.recv(12) == b"HTTP/1.1 204"
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        os.close(*fds)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_unresponsive_holder_process_makes_the_machine_unfit(
    listener: StartupListener, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(module, "HAND_OVER_TIMEOUT_S", 0.2)
    listener.child.send_signal(number)
    if number is signal.SIGKILL:
        listener.child.wait()
    with pytest.raises(MachineUnfit, match="start the worker again"):
        listener.take_sockets()


# The console:


@pytest.mark.parametrize(
    ("host", "key", "is_allowed"),
    [
        ("127.0.0.1", None, True),
        ("::1", None, True),
        ("localhost", "", True),
        ("0.0.0.0", "sk-mine", True),
        ("0.0.0.0", None, False),
        ("0.0.0.0", "", False),
        ("192.168.1.20", None, False),
    ],
)
def test_the_console_is_for_this_machine_or_for_callers_with_a_key(
    host: str, key: str | None, is_allowed: bool
) -> None:
    values = {} if key is None else {"SERVE_API_KEY": key}
    if is_allowed:
        check_console_access(host, values)
    else:
        with pytest.raises(StartFailed, match=f"{host} would .+ set SERVE_API_KEY"):
            check_console_access(host, values)
