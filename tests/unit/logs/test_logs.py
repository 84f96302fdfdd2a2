"""A process with a JSON log: no line of it or of its children is lost, however it exits."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.processes.background import HUNG_S, start_command

FinishedProcess = subprocess.CompletedProcess[str]

ENVIRON = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")}
SETUP = """
import logging, os, psutil, select, signal, sys, time, warnings
from worker import logs
log = logging.getLogger("worker")
logs.FLUSH_TIMEOUT_S = {flush_timeout_s}
logs.set_up({format!r}, {streams!r})
"""
# The log reader is the only child; the format "text" has no reader.
CHILD = "child, = psutil.Process().children()\n"
LINES = [str(number) for number in range(20_000)]
PRINT_LINES = """
os.write(2, b"".join(b"%d\\n" % number for number in range(20_000)))
sys.stdout.write("last")
"""


def command(
    script: str,
    log_format: str = "json",
    streams: Sequence[int] = (1, 2),
    # The reader may take long on a busy machine.
    flush_timeout_s: float = HUNG_S,
    first: str = "",
) -> list[str]:
    setup = SETUP.format(format=log_format, streams=tuple(streams), flush_timeout_s=flush_timeout_s)
    return [sys.executable, "-c", first + setup + script]


def run(
    script: str, *settings: Any, stdout: int = subprocess.PIPE, **named: Any
) -> FinishedProcess:
    command_line, err = command(script, *settings, **named), subprocess.PIPE
    return subprocess.run(
        command_line,
        env=ENVIRON,
        stdout=stdout,
        stderr=err,
        text=True,
        timeout=2 * HUNG_S,
        check=False,
    )


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def messages(text: str) -> list[str]:
    return [line["message"] for line in objects(text)]


def test_a_record_a_traceback_a_warning_and_a_failure_are_one_object_each() -> None:
    script = """
print("{}", flush=True)
log.error("%s failed", "j", extra={"fields": {"job": "j", "ms": 1.5, "at": log}})
try:
    1 / 0
except ZeroDivisionError:
    log.exception("oops")
warnings.warn("careful")
logs.write_failure("2 settings are wrong:\\n- A\\n- B")
"""
    result = run(script, streams=(2,))
    # A stream outside of the log stays as it is.
    assert result.stdout == "{}\n"
    record, error, warning, failure = objects(result.stderr)
    assert datetime.fromisoformat(record.pop("time")).microsecond % 1000 == 0
    assert str(record.pop("at")).startswith("<Logger worker")
    expected = {"level": "ERROR", "logger": "worker", "message": "j failed", "job": "j", "ms": 1.5}
    assert record == expected
    assert (error["message"], error["level"]) == ("oops", "ERROR")
    assert error["traceback"].startswith("Traceback (most recent call last):\n")
    assert error["traceback"].endswith("ZeroDivisionError: division by zero")
    assert "UserWarning: careful" in warning["message"]
    assert (warning["level"], warning["logger"]) == ("WARNING", "py.warnings")
    assert (failure["level"], failure["message"]) == (
        "CRITICAL",
        "2 settings are wrong:\n- A\n- B",
    )


def test_output_of_python_libraries_and_children_stays_on_its_stream() -> None:
    result = run("""
import subprocess
print("out", flush=True)
os.write(1, b"written\\n")
os.write(2, b"err\\n")
subprocess.run(["sh", "-c", "echo child; echo child err >&2"])
""")
    assert messages(result.stdout) == ["out", "written", "child"]
    assert messages(result.stderr) == ["err", "child err"]


def test_a_text_log_is_written_unchanged() -> None:
    result = run('print("out"); log.warning("logged"); logs.write_failure("no\\nway")', "text")
    assert result.stdout == "out\n"
    assert result.stderr.endswith(" WARNING worker: logged\nno\nway\n")


@pytest.mark.parametrize(
    ("exit_script", "signal_number"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL); time.sleep(600)", signal.SIGKILL),
        # The reader gets this signal, too.
        ("os.killpg(os.setpgrp() or os.getpgrp(), signal.SIGTERM)", signal.SIGTERM),
    ],
)
def test_the_last_lines_of_a_killed_process_are_written(
    exit_script: str, signal_number: int
) -> None:
    result = run(f"{PRINT_LINES}sys.stdout.flush()\n{exit_script}")
    assert result.returncode == -signal_number
    assert messages(result.stderr) == LINES
    assert messages(result.stdout) == ["last"]


KILL_READER = f"{CHILD}child.kill(); os.waitpid(child.pid, 0)\n"


# The reader dies with the process, as all processes of a container do when the first one exits.
def test_the_output_of_an_uncaught_exception_is_written() -> None:
    first = f"import atexit, os, psutil\n@atexit.register\ndef kill():\n  {CHILD}  "
    first += KILL_READER.removeprefix(CHILD)
    result = run(f"{PRINT_LINES}raise ValueError('defect')", first=first)
    assert result.returncode == 1
    assert messages(result.stderr)[-1] == "ValueError: defect"
    assert messages(result.stdout) == ["last"]


def test_flush_returns_after_all_output_is_written(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f"{PRINT_LINES}logs.flush()\n{KILL_READER}os._exit(3)\n"
    with start_command(command(script), ENVIRON, log) as process:
        assert process.wait_for_exit() == 3
    assert messages(log.read_text()) == [*LINES, "last"]


def test_a_flush_does_not_wait_for_children_that_can_still_print() -> None:
    result = run("""
parent = os.getpid()
if os.fork():
    begun = time.monotonic()
    logs.flush()
    print(time.monotonic() - begun < logs.FLUSH_TIMEOUT_S, flush=True)
    os._exit(0)
else:
    while os.getppid() == parent:
        time.sleep(0.01)
    print("outlived", flush=True)
    os._exit(0)
""")
    assert messages(result.stdout) == ["True", "outlived"]


def test_a_process_exits_although_its_reader_was_killed() -> None:
    result = run(f"{KILL_READER}print('unread')\nlogs.flush()\nos._exit(3)")
    assert result.returncode == 3


# Prints no more than a pipe can buffer while the reader is suspended.
STOP_READER = f"""
{CHILD}child.suspend()
os.write(2, b"".join(b"%d\\n" % i for i in range(2_000)))
print("last")
logs.flush()
"""


@pytest.mark.parametrize(
    ("exit_script", "printed"),
    [
        # The reader answers before the process exits, but the process doesn't read the answer.
        (
            """
child.resume()
select.select([logs._readers[0].control], [], [])
os._exit(3)
""",
            ["last"],
        ),
        # The reader answers after the process has exited, while a child still prints.
        (
            """
worker = os.getpid()
if os.fork():
    os._exit(3)
logs._readers[0].control.close()
while os.getppid() == worker:
    time.sleep(0.01)
child.resume()
while child.is_running() and child.status() in (psutil.STATUS_RUNNING, psutil.STATUS_STOPPED):
    time.sleep(0.01)
print("outlived", flush=True)
os._exit(0)
""",
            ["last", "outlived"],
        ),
    ],
    ids=["before", "after"],
)
def test_a_reader_that_answers_a_flush_too_late_loses_no_lines(
    exit_script: str, printed: list[str]
) -> None:
    result = run(STOP_READER + exit_script, flush_timeout_s=0.01)
    assert result.returncode == 3
    assert messages(result.stderr) == LINES[:2000]
    assert messages(result.stdout) == printed


def test_a_flush_ignores_the_answer_to_an_earlier_flush() -> None:
    result = run(
        f"""{STOP_READER}
child.resume()
select.select([logs._readers[0].control], [], [])
logs._readers[0].control.settimeout({HUNG_S})
os.write(2, b"".join(b"%d\\n" % i for i in range(2_000, 20_000)))
logs.flush()
child.kill()
os._exit(3)
""",
        flush_timeout_s=0.01,
    )
    assert result.returncode == 3
    assert messages(result.stderr) == LINES


def test_a_closed_stream_affects_neither_the_worker_nor_the_other_stream() -> None:
    read, write = os.pipe()
    os.close(read)
    result = run(
        f"{PRINT_LINES}sys.stdout.flush()\nprint('x' * 200_000)\nlogs.flush()\nos._exit(3)",
        stdout=write,
    )
    os.close(write)
    assert result.returncode == 3
    assert messages(result.stderr) == LINES


def test_the_reader_has_one_thread_and_ignores_termination_signals() -> None:
    result = run(f"""{CHILD}
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    child.send_signal(number)
logs.flush()
print(child.num_threads(), flush=True)
print(psutil.Process().num_threads(), flush=True)
""")
    assert messages(result.stdout) == ["1", "1"]
