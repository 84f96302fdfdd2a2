"""A process whose log is in JSON: no line of it or of its children is lost, however it ends."""

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
from support.processes.background import HUNG_S, background

Ran = subprocess.CompletedProcess[str]

ENVIRON = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")}
BEGIN = """
import logging, os, psutil, select, signal, sys, time, warnings
from worker import logs
log = logging.getLogger("worker")
logs.PATIENCE_S = {patience_s}
logs.set_up({format!r}, {streams!r})
"""
# The reader is the only child; with "text" there is none.
CHILD = "child, = psutil.Process().children()\n"
LINES = [str(number) for number in range(20_000)]
MANY = """
os.write(2, b"".join(b"%d\\n" % number for number in range(20_000)))
sys.stdout.write("last")
"""


def command(
    script: str,
    log_format: str = "json",
    streams: Sequence[int] = (1, 2),
    # The reader may take long on a busy machine.
    patience_s: float = HUNG_S,
) -> list[str]:
    begin = BEGIN.format(format=log_format, streams=tuple(streams), patience_s=patience_s)
    return [sys.executable, "-c", begin + script]


def run(script: str, *settings: Any, stdout: int = subprocess.PIPE, **named: Any) -> Ran:
    words, err = command(script, *settings, **named), subprocess.PIPE
    return subprocess.run(
        words, env=ENVIRON, stdout=stdout, stderr=err, text=True, timeout=2 * HUNG_S, check=False
    )


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def messages(text: str) -> list[str]:
    return [line["message"] for line in objects(text)]


def test_a_record_has_its_fields_beside_time_level_logger_and_message() -> None:
    ran = run('log.error("%s failed", "j", extra={"fields": {"job": "j", "ms": 1.5, "at": log}})')
    (line,) = objects(ran.stderr)
    assert datetime.fromisoformat(line.pop("time")).microsecond % 1000 == 0
    assert str(line.pop("at")).startswith("<Logger worker")
    expected = {"level": "ERROR", "logger": "worker", "message": "j failed", "job": "j", "ms": 1.5}
    assert line == expected


def test_a_traceback_and_a_warning_are_part_of_one_object() -> None:
    ran = run("""
try:
    1 / 0
except ZeroDivisionError:
    log.exception("oops")
warnings.warn("careful")
""")
    failed, warned = objects(ran.stderr)
    assert (failed["message"], failed["level"]) == ("oops", "ERROR")
    assert failed["traceback"].startswith("Traceback (most recent call last):\n")
    assert failed["traceback"].endswith("ZeroDivisionError: division by zero")
    assert "UserWarning: careful" in warned["message"]
    assert (warned["level"], warned["logger"]) == ("WARNING", "py.warnings")


def test_what_python_and_libraries_and_children_print_stays_on_its_stream() -> None:
    ran = run("""
import subprocess
print("out", flush=True)
os.write(1, b"written\\n")
os.write(2, b"err\\n")
subprocess.run(["sh", "-c", "echo child; echo child err >&2"])
""")
    assert messages(ran.stdout) == ["out", "written", "child"]
    assert messages(ran.stderr) == ["err", "child err"]


def test_a_stream_that_is_no_part_of_the_log_is_left_alone() -> None:
    ran = run('print("{}", flush=True); log.warning("logged")', streams=(2,))
    assert ran.stdout == "{}\n"
    assert messages(ran.stderr) == ["logged"]


def test_text_is_as_ever() -> None:
    ran = run('print("out"); log.warning("logged"); logs.write_failure("no\\nway")', "text")
    assert ran.stdout == "out\n"
    assert ran.stderr.endswith(" WARNING worker: logged\nno\nway\n")


def test_why_the_worker_ends_is_one_object() -> None:
    (line,) = objects(run('logs.write_failure("2 settings are wrong:\\n- A\\n- B")').stderr)
    assert (line["level"], line["message"]) == ("CRITICAL", "2 settings are wrong:\n- A\n- B")


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("sys.exit(3)", 3),
        ("logs.flush(); os._exit(3)", 3),
        ("os._exit(3)", 3),
        ("raise SystemExit", 0),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(600)", -signal.SIGTERM),
        ("os.killpg(os.setpgrp() or os.getpgrp(), signal.SIGTERM)", -signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGKILL); time.sleep(600)", -signal.SIGKILL),
        ("os.abort()", -signal.SIGABRT),
    ],
)
def test_however_a_process_ends_its_last_lines_are_written(end: str, status: int) -> None:
    ran = run(f"{MANY}sys.stdout.flush()\n{end}")
    assert ran.returncode == status
    assert messages(ran.stderr) == LINES
    assert messages(ran.stdout) == ["last"]


def test_what_a_defect_prints_is_written() -> None:
    ran = run(f"{MANY}raise ValueError('defect')")
    assert ran.returncode == 1
    assert messages(ran.stderr)[-1] == "ValueError: defect"
    assert messages(ran.stdout) == ["last"]


KILL_READER = f"{CHILD}child.kill(); os.waitpid(child.pid, 0)\n"


# Ends as the first process of a container does: with it ends all that has not been written yet.
def test_all_has_been_written_when_the_flush_returns(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f"{MANY}logs.flush()\n{KILL_READER}os._exit(3)\n"
    with background(command(script), ENVIRON, log) as process:
        assert process.ended() == 3
    assert messages(log.read_text()) == [*LINES, "last"]


def test_a_flush_does_not_wait_for_children_that_can_still_print() -> None:
    ran = run("""
parent = os.getpid()
if os.fork():
    begun = time.monotonic()
    logs.flush()
    print(time.monotonic() - begun < logs.PATIENCE_S, flush=True)
    os._exit(0)
else:
    while os.getppid() == parent:
        time.sleep(0.01)
    print("outlived", flush=True)
    os._exit(0)
""")
    assert messages(ran.stdout) == ["True", "outlived"]


def test_a_process_whose_reader_was_killed_ends() -> None:
    ran = run(f"{KILL_READER}print('unread')\nlogs.flush()\nos._exit(3)")
    assert ran.returncode == 3


# As much as a pipe holds while nobody reads it.
STOP_READER = f"""
{CHILD}child.suspend()
os.write(2, b"".join(b"%d\\n" % i for i in range(2_000)))
print("last")
logs.flush()
"""


@pytest.mark.parametrize(
    ("end", "printed"),
    [
        # Its answer comes, and nobody reads it.
        (
            """
child.resume()
select.select([logs._readers[0].control], [], [])
os._exit(3)
""",
            ["last"],
        ),
        # Its answer comes when there is nobody any more, but a child that goes on printing.
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
def test_a_reader_that_answers_a_flush_too_late_loses_nothing(end: str, printed: list[str]) -> None:
    ran = run(STOP_READER + end, patience_s=0.01)
    assert ran.returncode == 3
    assert messages(ran.stderr) == LINES[:2000]
    assert messages(ran.stdout) == printed


def test_a_flush_does_not_take_the_answer_to_an_earlier_one_for_its_own() -> None:
    ran = run(
        f"""{STOP_READER}
child.resume()
select.select([logs._readers[0].control], [], [])
logs._readers[0].control.settimeout({HUNG_S})
os.write(2, b"".join(b"%d\\n" % i for i in range(2_000, 20_000)))
logs.flush()
child.kill()
os._exit(3)
""",
        patience_s=0.01,
    )
    assert ran.returncode == 3
    assert messages(ran.stderr) == LINES


def test_what_nobody_reads_any_more_harms_neither_the_worker_nor_its_other_stream() -> None:
    read, write = os.pipe()
    os.close(read)
    ran = run(
        f"{MANY}sys.stdout.flush()\nprint('x' * 200_000)\nlogs.flush()\nos._exit(3)", stdout=write
    )
    os.close(write)
    assert ran.returncode == 3
    assert messages(ran.stderr) == LINES


def test_a_log_that_takes_only_a_part_at_a_time_gets_all_of_it() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    script = f"{MANY}{CHILD}while child.status() == psutil.STATUS_RUNNING: time.sleep(0.01)"
    full = command(script, streams=(2,), patience_s=0.01)
    with subprocess.Popen(full, env=ENVIRON, stdout=subprocess.DEVNULL, stderr=write) as process:
        os.close(write)
        # The pipe is full by then, and the reader has more for it.
        assert process.wait(HUNG_S) == 0
        with os.fdopen(read) as log:
            assert messages(log.read()) == LINES


def test_the_reader_has_no_threads_and_no_signal_but_kill_ends_it() -> None:
    ran = run(f"""{CHILD}
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    child.send_signal(number)
logs.flush()
print(child.num_threads(), flush=True)
print(psutil.Process().num_threads(), flush=True)
""")
    assert messages(ran.stdout) == ["1", "1"]
