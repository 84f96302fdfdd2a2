"""Objects made of printed lines, where one line ends, and the last error in a core's lines."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import psutil
import pytest
from support.processes.background import HUNG_S, wait_until

from worker.logs import reader
from worker.logs.reader import (
    ERRORS,
    LONGEST,
    LONGEST_SEARCHED,
    CoreLines,
    Lines,
    as_object,
    error_in,
)

PREFIX = "(EngineCore pid=7) ERROR 11-22 10:00:00 [core.py:1] "


def printed(*parts: bytes) -> list[dict[str, Any]]:
    """Return the objects of what is printed in parts, at the end of all that can print."""
    lines = Lines()
    fed = [lines.feed(part) for part in parts]
    return [json.loads(line) for line in b"".join([*fed, lines.rest()]).splitlines()]


def messages(*parts: bytes) -> list[str]:
    return [line["message"] for line in printed(*parts)]


def test_a_line_of_text_is_the_message_of_an_object_with_time_and_level() -> None:
    (line,) = printed(b"--- Starting Serverless Worker\n")
    assert datetime.fromisoformat(line.pop("time")).tzinfo is not None
    assert line == {"level": "INFO", "message": "--- Starting Serverless Worker"}


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("WARNING 11-22 10:00:00 [envs.py:1] text", "WARNING"),
        ("(EngineCore pid=7) ERROR 11-22 10:00:00 [core.py:1] text", "ERROR"),
        ("2026-11-22 10:00:00,123 WARNING worker.store: text", "WARNING"),
        ("DEBUG  | text", "DEBUG"),
        ("INFO:     Started server process", "INFO"),
        ("[W1122 10:00:00.271615893 utils.cpp:68] Warning: text", "WARNING"),
        ("E1122 10:00:00.982000 7 triton.py:53] text", "ERROR"),
        ("Endpoint W1122", "INFO"),
        ("INFORMATION about an ERROR", "INFO"),
        ("A CRITICAL text", "INFO"),
    ],
)
def test_the_level_is_read_where_a_format_has_it(text: str, level: str) -> None:
    line = json.loads(as_object(text))
    assert (line["level"], line["message"]) == (level, text)


def test_an_object_with_a_message_keeps_its_keys_and_gets_those_that_are_missing() -> None:
    (line,) = printed(b'{"requestId": "j-1", "message": "Finished.", "level": "WARN"}\n')
    assert datetime.fromisoformat(line.pop("time"))
    assert line == {"requestId": "j-1", "message": "Finished.", "level": "WARN"}
    whole = '{"time": "t", "level": "ERROR", "logger": "worker", "message": "m", "job": 1}'
    assert as_object(whole) == whole


@pytest.mark.parametrize(
    "text",
    [
        '{"tokens": []}',
        '{"message": ',
        '{"message": "m", "loss": NaN}',
        '{"message": "m", "loss": 1e999}',
        '{"a":' * 100_000,
        "[1, 2]",
        "1",
    ],
)
def test_other_json_is_text(text: str) -> None:
    assert json.loads(as_object(text))["message"] == text


def test_no_object_has_a_character_that_could_end_a_line() -> None:
    text = Lines().feed("a\x0bb\u2028c\u0085d\n".encode())
    assert text.isascii()
    assert len(text.splitlines()) == 1
    assert json.loads(text)["message"] == "a\x0bb\u2028c\u0085d"


OTHER = PREFIX.replace("7", "8")


@pytest.mark.parametrize(
    ("parts", "lines"),
    [
        pytest.param([b"\x1b[32mINFO\x1b[0m \xff\n"], ["INFO \ufffd"], id="colours, wrong bytes"),
        pytest.param([b"\r 0%|\r50%|###", b"\r100%|###\n"], ["100%|###"], id="a progress bar"),
        pytest.param([b"a\n\n \t\n\x1b[0m\nb\n"], ["a", "b"], id="blank lines"),
        pytest.param(
            [b"a", b"b", b"\xc3", b"\xbc\nlast"], ["ab\u00fc", "last"], id="lines in parts"
        ),
        pytest.param(
            [f"{PREFIX}a\r\n{OTHER}b\r\n{OTHER}c\nd\r\ne\n".encode()],
            [f"{PREFIX}a", f"{OTHER}b\nc", "d", "e"],
            id="another line between a record's",
        ),
    ],
)
def test_lines_are_what_a_terminal_would_show(parts: list[bytes], lines: list[str]) -> None:
    assert messages(*parts) == lines


def test_a_line_without_end_is_cut() -> None:
    parts = [b"x" * 100_000] * 25
    assert [len(text) for text in messages(*parts)] == [LONGEST, LONGEST, LONGEST // 2]


def test_a_record_of_vllm_with_several_lines_is_one_object() -> None:
    record = f"{PREFIX}failed\r\n{PREFIX}Traceback:\r\n{PREFIX}\r\n{PREFIX}ValueError\n".encode()
    (line,) = printed(record[:70], record[70:])
    assert line["level"] == "ERROR"
    assert line["message"] == f"{PREFIX}failed\nTraceback:\n\nValueError"


def test_a_record_without_end_is_cut() -> None:
    line = f"{PREFIX}{'x' * 100_000}\r\n".encode()
    first, second = messages(line * 15)
    assert LONGEST < len(first) < 1.2 * LONGEST
    assert len(second) > 100_000


# A core's lines, and the last error in them

CORE = "(EngineCore pid=7) ERROR 11-22 19:50:01 [core.py:1512] "
PRINTED = b"one\n" * 50_000


@pytest.mark.parametrize("prefix", ["", CORE, "(Worker_PP0_TP1_EP1 pid=8) "])
@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: broken",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "KeyboardInterrupt",
        "Exception: only on GPUs",
        "Fatal Python error: Segmentation fault",
        "terminate called after throwing an instance",
        "ValueError: " + "x" * (LONGEST_SEARCHED - 100),
    ],
)
def test_an_error_is_the_end_of_a_traceback_or_of_a_process(prefix: str, error: str) -> None:
    assert error_in(prefix + error) == error


@pytest.mark.parametrize(
    "line",
    [
        "Exceptional: as it is",
        f"{CORE}EngineCore encountered a fatal error.",
        f'{CORE}  File "core.py", line 1, in step',
        "    raise ValueError: no",
        "RuntimeError: Engine core initialization failed. See root cause above.",
        f"{CORE}Exception: WorkerProc initialization failed due to an exception in a back",
        f"{CORE}RuntimeError: Worker failed with error 'no', please check the stack",
        f"{CORE}RuntimeError: Executor failed.",
        "",
    ],
)
def test_another_line_is_none(line: str) -> None:
    assert error_in(line) is None


def test_a_long_error_is_cut() -> None:
    error = "ValueError: " + "x" * 10_000
    assert error_in(error) == error[:LONGEST_SEARCHED]


def test_a_line_of_a_core_waits_for_its_end_unless_it_is_too_long(tmp_path: Path) -> None:
    with (tmp_path / "note").open("w+b") as note:
        lines = CoreLines(note.fileno())
        assert lines.feed(b"x" * LONGEST_SEARCHED) == b""
        assert lines.feed(b"x") == b"x" * (LONGEST_SEARCHED + 1)
        assert (lines.feed(b" 50%\r100%"), lines.rest()) == (b" 50%\r", b"100%")


@contextmanager
def reading(target: int, note: int) -> Iterator[tuple[psutil.Popen, IO[bytes]]]:
    """Run a reader of a core that writes to the target; yield it, and where the core prints."""
    source, sink = os.pipe()
    command = [sys.executable, "-I", "-S", reader.__file__]
    command += [ERRORS, str(note), f"{source}:{target}"]
    passed = [source, note, target]
    with (
        os.fdopen(sink, "wb", buffering=0) as core,
        psutil.Popen(command, stdin=subprocess.DEVNULL, pass_fds=passed) as process,
    ):
        os.close(source)
        yield process, core
        core.close()
        assert process.wait(HUNG_S) == 0


# What vLLM 0.32 prints where a part of a model on two GPUs fails while it is made, or is asked.
FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
RANK = "(Worker_TP1 pid=8) ERROR 11-22 19:50:01 [multiproc_executor.py:953] "
OTHER = "(Worker_TP0 pid=7) ERROR 11-22 19:50:02 [multiproc_executor.py:953] "
LOST = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94"
MADE = (
    f"{CORE}Exception: WorkerProc initialization failed due to an exception in a background "
    "process. See stack trace for root cause."
)
ASKED = (
    f"{CORE}RuntimeError: Worker failed with error 'CUDA out of memory. Tried to allocate "
    "2.00 GiB.', please check the stack trace above for the root cause"
)


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([RANK + FULL, MADE], FULL),
        ([RANK + FULL, OTHER + LOST, MADE], FULL),
        ([RANK + FULL, FULL, ASKED], FULL),
        ([f"{RANK}ValueError: no", MADE], "ValueError: no"),
        ([f"{RANK}ValueError: no", OTHER + LOST, MADE], LOST),
        ([RANK + FULL, f"{OTHER}ValueError: no"], "ValueError: no"),
    ],
)
def test_the_error_of_a_part_is_the_cores(lines: list[str], error: str, tmp_path: Path) -> None:
    text = "".join(f"{line}\n" for line in lines).encode()
    with (tmp_path / "log").open("wb") as log, (tmp_path / "note").open("w+b") as note:
        with reading(log.fileno(), note.fileno()) as (_, core):
            core.write(text)
        noted = note.read().decode().partition("\n")[0]
    assert (tmp_path / "log").read_bytes() == text
    assert noted == error


def test_a_core_can_print_although_nobody_reads_it(tmp_path: Path) -> None:
    unread, target = os.pipe()
    os.close(unread)
    with (tmp_path / "note").open("w+b") as note:
        with reading(target, note.fileno()) as (_, core):
            core.write(PRINTED + b"ValueError: no\n")
        assert note.read() == b"ValueError: no\n"
    os.close(target)


def test_a_target_that_takes_only_a_part_at_a_time_gets_everything(tmp_path: Path) -> None:
    read, target = os.pipe()
    os.set_blocking(target, False)
    with (
        (tmp_path / "note").open("w+b") as note,
        reading(target, note.fileno()) as (process, core),
    ):
        # More than two pipes hold: the target is full, and the reader has more for it.
        core.write(PRINTED[:150_000])
        wait_until(lambda: process.status() != psutil.STATUS_RUNNING)
        os.close(target)
        with ThreadPoolExecutor() as pool, os.fdopen(read, "rb") as passed_on:
            all_of_it = pool.submit(passed_on.read)
            core.write(PRINTED[150_000:])
            core.close()
            assert all_of_it.result() == PRINTED


def test_an_error_that_can_not_be_noted_is_passed_on(tmp_path: Path) -> None:
    (tmp_path / "note").touch()
    with (
        (tmp_path / "log").open("wb") as log,
        (tmp_path / "note").open("rb") as note,
        reading(log.fileno(), note.fileno()) as (_, core),
    ):
        core.write(b"ValueError: no\n" + PRINTED)
    assert (tmp_path / "log").read_bytes() == b"ValueError: no\n" + PRINTED
