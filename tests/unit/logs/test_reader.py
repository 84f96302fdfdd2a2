"""JSON objects from printed lines, the ends of lines, and the last error of an engine core."""

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
    MAX_LINE_BYTES,
    MAX_SEARCHED_CHARS,
    ErrorRecorder,
    JSONConverter,
    find_error,
    format_json_line,
)

PREFIX = "(EngineCore pid=7) ERROR 11-22 10:00:00 [core.py:1] "


def convert(*parts: bytes) -> list[dict[str, Any]]:
    """Return the objects of output that is printed in parts, after a final flush."""
    converter = JSONConverter()
    chunks = [converter.feed(part) for part in parts]
    return [json.loads(line) for line in b"".join([*chunks, converter.flush()]).splitlines()]


def messages(*parts: bytes) -> list[str]:
    return [line["message"] for line in convert(*parts)]


def test_a_line_of_text_is_the_message_of_an_object_with_time_and_level() -> None:
    (line,) = convert(b"--- Starting Serverless Worker\n")
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
def test_the_level_is_read_from_known_formats(text: str, level: str) -> None:
    line = json.loads(format_json_line(text))
    assert (line["level"], line["message"]) == (level, text)


def test_an_object_with_a_message_keeps_its_keys_and_gets_the_missing_keys() -> None:
    (line,) = convert(b'{"requestId": "j-1", "message": "Finished.", "level": "WARN"}\n')
    assert datetime.fromisoformat(line.pop("time"))
    assert line == {"requestId": "j-1", "message": "Finished.", "level": "WARN"}
    whole = '{"time": "t", "level": "ERROR", "logger": "worker", "message": "m", "job": 1}'
    assert format_json_line(whole) == whole


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
    assert json.loads(format_json_line(text))["message"] == text


def test_no_object_has_a_character_that_could_end_a_line() -> None:
    text = JSONConverter().feed("a\x0bb\u2028c\u0085d\n".encode())
    assert text.isascii()
    assert len(text.splitlines()) == 1
    assert json.loads(text)["message"] == "a\x0bb\u2028c\u0085d"


OTHER_PREFIX = PREFIX.replace("7", "8")


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
            [f"{PREFIX}a\r\n{OTHER_PREFIX}b\r\n{OTHER_PREFIX}c\nd\r\ne\n".encode()],
            [f"{PREFIX}a", f"{OTHER_PREFIX}b\nc", "d", "e"],
            id="another line between a record's",
        ),
    ],
)
def test_lines_are_split_as_a_terminal_displays_them(parts: list[bytes], lines: list[str]) -> None:
    assert messages(*parts) == lines


def test_an_endless_line_is_cut() -> None:
    parts = [b"x" * 100_000] * 25
    assert [len(text) for text in messages(*parts)] == [
        MAX_LINE_BYTES,
        MAX_LINE_BYTES,
        MAX_LINE_BYTES // 2,
    ]


def test_a_record_of_vllm_with_several_lines_is_one_object() -> None:
    record = f"{PREFIX}failed\r\n{PREFIX}Traceback:\r\n{PREFIX}\r\n{PREFIX}ValueError\n".encode()
    (line,) = convert(record[:70], record[70:])
    assert line["level"] == "ERROR"
    assert line["message"] == f"{PREFIX}failed\nTraceback:\n\nValueError"


def test_an_endless_record_is_cut() -> None:
    line = f"{PREFIX}{'x' * 100_000}\r\n".encode()
    first, second = messages(line * 15)
    assert MAX_LINE_BYTES < len(first) < 1.2 * MAX_LINE_BYTES
    assert len(second) > 100_000


# The last error of an engine core:

CORE = "(EngineCore pid=7) ERROR 11-22 19:50:01 [core.py:1512] "


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
        "ValueError: " + "x" * (MAX_SEARCHED_CHARS - 100),
    ],
)
def test_the_last_line_of_a_traceback_or_a_fatal_message_is_an_error(
    prefix: str, error: str
) -> None:
    assert find_error(prefix + error) == error


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
def test_other_lines_are_no_errors(line: str) -> None:
    assert find_error(line) is None


def test_a_long_error_is_cut() -> None:
    error = "ValueError: " + "x" * 10_000
    assert find_error(error) == error[:MAX_SEARCHED_CHARS]


def test_a_line_of_a_core_is_buffered_up_to_a_maximum_length(tmp_path: Path) -> None:
    with (tmp_path / "note").open("w+b") as error_file:
        recorder = ErrorRecorder(error_file.fileno())
        assert recorder.feed(b"x" * MAX_SEARCHED_CHARS) == b""
        assert recorder.feed(b"x") == b"x" * (MAX_SEARCHED_CHARS + 1)
        assert (recorder.feed(b" 50%\r100%"), recorder.flush()) == (b" 50%\r", b"100%")


# Output of vLLM 0.32 when one of two GPU workers fails at startup or while it computes.
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
RANK_1 = "(Worker_TP1 pid=8) ERROR 11-22 19:50:01 [multiproc_executor.py:953] "
RANK_0 = "(Worker_TP0 pid=7) ERROR 11-22 19:50:02 [multiproc_executor.py:953] "
NCCL_ERROR = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94"
INIT_FAILED = (
    f"{CORE}Exception: WorkerProc initialization failed due to an exception in a background "
    "process. See stack trace for root cause."
)
CALL_FAILED = (
    f"{CORE}RuntimeError: Worker failed with error 'CUDA out of memory. Tried to allocate "
    "2.00 GiB.', please check the stack trace above for the root cause"
)


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([RANK_1 + OUT_OF_MEMORY, INIT_FAILED], OUT_OF_MEMORY),
        ([RANK_1 + OUT_OF_MEMORY, RANK_0 + NCCL_ERROR, INIT_FAILED], OUT_OF_MEMORY),
        ([RANK_1 + OUT_OF_MEMORY, OUT_OF_MEMORY, CALL_FAILED], OUT_OF_MEMORY),
        ([f"{RANK_1}ValueError: no", INIT_FAILED], "ValueError: no"),
        ([f"{RANK_1}ValueError: no", RANK_0 + NCCL_ERROR, INIT_FAILED], NCCL_ERROR),
        ([RANK_1 + OUT_OF_MEMORY, f"{RANK_0}ValueError: no"], "ValueError: no"),
    ],
)
def test_the_error_of_a_gpu_worker_is_the_error_of_the_core(
    lines: list[str], error: str, tmp_path: Path
) -> None:
    text = "".join(f"{line}\n" for line in lines).encode()
    with (tmp_path / "note").open("w+b") as error_file:
        assert ErrorRecorder(error_file.fileno()).feed(text) == text
        assert error_file.read().decode().partition("\n")[0] == error


FRAME = 'File "/vllm/loader.py", line 7, in '
START = "Traceback (most recent call last):"


@pytest.mark.parametrize(
    ("lines", "function"),
    [
        ([START, f"{FRAME}load_model", "AssertionError"], ""),
        ([START, f"{FRAME}load_weights", f"{FRAME}read", "KeyError: 'a'"], "load_weights"),
        ([START, f"{FRAME}initialize_model", f"{FRAME}__init__", "KeyError"], "initialize_model"),
        # A later traceback is about something else.
        ([START, f"{FRAME}load_weights", "KeyError", START, f"{FRAME}run", "ValueError: no"], ""),
        # The error that vLLM raises for the actual one leaves it in place.
        ([START, f"{FRAME}load_weights", "KeyError", START, INIT_FAILED], "load_weights"),
    ],
)
def test_the_function_of_the_loader_that_raised_the_error_is_recorded(
    lines: list[str], function: str, tmp_path: Path
) -> None:
    with (tmp_path / "note").open("w+b") as error_file:
        recorder = ErrorRecorder(error_file.fileno())
        recorder.feed("".join(f"{CORE}{line.removeprefix(CORE)}\n" for line in lines).encode())
        assert error_file.read().decode().split("\n")[1] == function


# The process of a reader:

OUTPUT = b"one\n" * 50_000


@contextmanager
def run_reader(target: int, error_fd: int) -> Iterator[tuple[psutil.Popen, IO[bytes]]]:
    """Run a reader that writes to the target, and yield it with the pipe for the core's output."""
    source, sink = os.pipe()
    command = [sys.executable, "-I", "-S", reader.__file__]
    command += [ERRORS, str(error_fd), f"{source}:{target}"]
    passed_fds = [source, error_fd, target]
    with (
        os.fdopen(sink, "wb", buffering=0) as core,
        psutil.Popen(command, stdin=subprocess.DEVNULL, pass_fds=passed_fds) as process,
    ):
        os.close(source)
        yield process, core
        core.close()
        assert process.wait(HUNG_S) == 0


def test_a_core_can_print_although_the_log_is_closed(tmp_path: Path) -> None:
    unread, target = os.pipe()
    os.close(unread)
    with (tmp_path / "note").open("w+b") as error_file:
        with run_reader(target, error_file.fileno()) as (_, core):
            core.write(OUTPUT + b"ValueError: no\n")
        assert error_file.read() == b"ValueError: no\n\n"
    os.close(target)


def test_a_non_blocking_target_gets_all_output(tmp_path: Path) -> None:
    read, target = os.pipe()
    os.set_blocking(target, False)
    with (
        (tmp_path / "note").open("w+b") as error_file,
        run_reader(target, error_file.fileno()) as (process, core),
    ):
        # More than two pipes can buffer: the target is full, and the reader has more to write.
        core.write(OUTPUT[:150_000])
        wait_until(lambda: process.status() != psutil.STATUS_RUNNING)
        os.close(target)
        with ThreadPoolExecutor() as pool, os.fdopen(read, "rb") as target_reader:
            target_content = pool.submit(target_reader.read)
            core.write(OUTPUT[150_000:])
            core.close()
            assert target_content.result() == OUTPUT


def test_output_is_passed_on_although_its_error_cannot_be_recorded(tmp_path: Path) -> None:
    (tmp_path / "note").touch()
    with (
        (tmp_path / "log").open("wb") as log,
        (tmp_path / "note").open("rb") as error_file,
        run_reader(log.fileno(), error_file.fileno()) as (_, core),
    ):
        core.write(b"ValueError: no\n" + OUTPUT)
    assert (tmp_path / "log").read_bytes() == b"ValueError: no\n" + OUTPUT
