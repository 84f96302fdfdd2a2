"""Runs the tests in concurrent forks of the process that has collected them (``--workers 3``).

Importing vLLM and the tests takes half a minute of CPU time on a slow machine. The workers of
pytest-xdist are processes that would each do so; forks share it.
"""

import contextlib
import ctypes
import gc
import importlib.util
import json
import os
import queue
import signal
import struct
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import pytest

from support import ROOT
from support.processes import forking

# Session fixtures that start an endpoint or a server.
ENDPOINTS = {"make_endpoint", "server"}

# Imports of vLLM by all processes of ``make test``: by this one, by that of the forked scripts, and
# by commands that tests start as an operator does, of which slow tests start more. A worker that is
# run meanwhile counts, too.
MAX_IMPORTS = 10
IMPORTS = pytest.StashKey[int]()
# From <sys/inotify.h>: masks, and an event with its watch, mask, cookie and length of a name.
IN_CLOSE_NOWRITE, IN_OPEN = 0x10, 0x20
EVENT = struct.Struct("iIII")

Message = dict[str, Any]


class ForkedRun:
    """Runs a session's tests in forks, and reports their results as if it had run them.

    Tests that share an engine or an endpoint have a fork of their own. The others have two queues,
    because those of the platform mostly wait for processes, and the rest mostly computes.

    Args:
        workers: Number of forks for each queue whose tests share nothing.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._imports = OpenCounter(find_compiled("vllm"))

    def pytest_collection(self) -> None:
        # It imports vLLM for the scripts of all tests, while the tests are collected.
        forking.start_server()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.config.option.collectonly or session.testsfailed:
            return None
        forking.keep_server()
        # So that the garbage collector does not copy the pages that the forks share.
        gc.freeze()
        queues = make_queues(session.items)
        forks = dict[int, int]()
        for name, waiting in queues.items():
            for _ in range(1 if name in ("model", "endpoint") else self._workers):
                reader, writer = os.pipe()
                if not (pid := os.fork()):
                    for other in (reader, *forks.values()):
                        os.close(other)
                    with os.fdopen(writer, "w") as messages:
                        run_tests(session, waiting, messages)
                    return True
                os.close(writer)
                forks[pid] = reader
        report_results(session, forks)
        imports = self._imports.read()
        session.config.stash[IMPORTS] = imports
        if imports > MAX_IMPORTS and session.config.option.markexpr == "not slow":
            # pytest prints it.
            session.shouldfail = (
                f"vLLM was imported {imports} times, more than {MAX_IMPORTS}: start scripts as "
                "forks (docs/maintaining.md), or raise the number"
            )
            raise session.Failed(session.shouldfail)
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if imports := terminalreporter.config.stash.get(IMPORTS, 0):
            terminalreporter.write_line(f"Imports of vLLM, by all processes: {imports}")


class OpenCounter:
    """Counts how often any process opens a file, with Linux's inotify."""

    def __init__(self, path: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._events = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        # With the closings between them, equal events are not merged into one.
        watch = libc.inotify_add_watch(self._events, bytes(path), IN_OPEN | IN_CLOSE_NOWRITE)
        if watch < 0:
            raise OSError(ctypes.get_errno(), "inotify can't watch this file", str(path))

    def read(self) -> int:
        """Return the number since the last call."""
        opened = 0
        with contextlib.suppress(BlockingIOError):
            while events := os.read(self._events, 65_536):
                # An event of a watched file has no name, so all have the same size.
                opened += sum(mask & IN_OPEN != 0 for _, mask, _, _ in EVENT.iter_unpack(events))
        return opened


def find_compiled(package: str) -> Path:
    """Return the file that each import of a package opens."""
    spec = importlib.util.find_spec(package)
    assert spec
    assert spec.cached
    return Path(spec.cached)


class FileQueue:
    """Tests by file; one of the forks takes a file."""

    def __init__(self, files: Sequence[Sequence[pytest.Item]]) -> None:
        self._files = files
        # The numbers of the files are in a pipe, from which all forks read.
        self._number = struct.Struct("=H")
        self._reader, writer = os.pipe()
        os.write(writer, b"".join(map(self._number.pack, range(len(files)))))
        os.close(writer)

    def __iter__(self) -> Iterator[pytest.Item]:
        while packed := os.read(self._reader, self._number.size):
            yield from self._files[self._number.unpack(packed)[0]]


def make_queues(items: Sequence[pytest.Item]) -> dict[str, FileQueue]:
    """Return the queues by name, each with the tests in their order."""
    queues: dict[str, dict[str, list[pytest.Item]]] = {}
    for item in items:
        folder = item.path.relative_to(ROOT / "tests").parts[0]
        name = folder if folder in ("model", "platform") else "others"
        if ENDPOINTS & {*getattr(item, "fixturenames", ())}:
            name = "endpoint"
        queues.setdefault(name, {}).setdefault(str(item.path), []).append(item)
    return {name: FileQueue([*files.values()]) for name, files in queues.items()}


def run_tests(session: pytest.Session, items: FileQueue, messages: TextIO) -> None:
    """Run tests in this process, a fork, and write their results, a message in each line."""
    # Objects of the first process must not be finalized at the exit of a fork.
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]  # no other list
        finalizer.atexit = False
    config = session.config
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(Reporter(config, messages))
    waiting = iter(items)
    item = next(waiting, None)
    while item is not None:
        following = next(waiting, None)
        config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        item = following
    messages.write(json.dumps({"ended": True}) + "\n")


class Reporter:
    """Writes what a fork would report in the terminal."""

    def __init__(self, config: pytest.Config, messages: TextIO) -> None:
        self._config = config
        self._messages = messages

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._write({"started": nodeid, "location": location})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        serialize = self._config.hook.pytest_report_to_serializable
        self._write({"report": serialize(config=self._config, report=report)})

    def _write(self, message: Message) -> None:
        self._messages.write(json.dumps(message) + "\n")
        self._messages.flush()


def report_results(session: pytest.Session, forks: dict[int, int]) -> None:
    """Report the results of all forks; stop them at the session's limit of failures.

    Args:
        forks: Descriptors from which their messages are read, by process id.
    """
    hook, config = session.config.hook, session.config
    missing = {item.nodeid for item in session.items}
    messages = queue.Queue[tuple[int, Message]]()
    for pid, reader in forks.items():
        threading.Thread(target=_read, args=(pid, reader, messages), daemon=True).start()
    running = dict.fromkeys(forks, "no test")
    try:
        while running:
            pid, message = messages.get()
            if "started" in message:
                running[pid] = nodeid = message["started"]
                hook.pytest_runtest_logstart(nodeid=nodeid, location=message["location"])
            elif data := message.get("report"):
                report = hook.pytest_report_from_serializable(config=config, data=data)
                hook.pytest_runtest_logreport(report=report)
                if report.when == "teardown":
                    missing.discard(report.nodeid)
                    hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)
            elif "ended" in message:
                del running[pid]
            elif pid in running:
                session.shouldfail = f"a process died in {running[pid]}"
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
    finally:
        for pid in running:
            os.kill(pid, signal.SIGINT)
        statuses = {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in forks}
    # A fork may fail after its last test. Its status is 1 if one of its tests has failed.
    if missing or statuses - {0, 1 if session.testsfailed else 0}:
        session.shouldfail = (
            f"forks exited with {statuses}; without a result: {sorted(missing) or 'no test'}"
        )
        raise session.Failed(session.shouldfail)


def _read(pid: int, reader: int, messages: queue.Queue[tuple[int, Message]]) -> None:
    with os.fdopen(reader) as lines:
        for line in lines:
            messages.put((pid, json.loads(line)))
    messages.put((pid, {}))
