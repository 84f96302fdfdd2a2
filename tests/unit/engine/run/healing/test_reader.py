"""What a core prints: passed on, and the last error in it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from support.processes.background import HUNG_S, wait_until

from worker.engine.run.healing import output as module
from worker.engine.run.healing import reader
from worker.engine.run.healing.output import CoreOutput
from worker.engine.run.healing.reader import LONGEST_LINE, error_in
from worker.engine.start.fitting import is_out_of_memory
from worker.engine.start.refusals import blamed
from worker.errors import MachineUnfit

PREFIX = "(EngineCore pid=7) ERROR 11-22 19:50:01 [core.py:1512] "
LINES = b"one\n" * 50_000


@pytest.mark.parametrize("prefix", ["", PREFIX, "(Worker_PP0_TP1_EP1 pid=8) "])
@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: broken",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "KeyboardInterrupt",
        "Exception: only on GPUs",
        "Fatal Python error: Segmentation fault",
        "terminate called after throwing an instance",
        "ValueError: " + "x" * (LONGEST_LINE - 100),
    ],
)
def test_an_error_is_the_end_of_a_traceback_or_of_a_process(prefix: str, error: str) -> None:
    assert error_in(prefix + error) == error


@pytest.mark.parametrize(
    "line",
    [
        "Exceptional: as it is",
        f"{PREFIX}EngineCore encountered a fatal error.",
        f'{PREFIX}  File "core.py", line 1, in step',
        "    raise ValueError: no",
        "RuntimeError: Engine core initialization failed. See root cause above.",
        f"{PREFIX}Exception: WorkerProc initialization failed due to an exception in a back",
        f"{PREFIX}RuntimeError: Worker failed with error 'no', please check the stack",
        f"{PREFIX}RuntimeError: Executor failed.",
        "",
    ],
)
def test_another_line_is_none(line: str) -> None:
    assert error_in(line) is None


def test_a_long_error_is_cut() -> None:
    error = "ValueError: " + "x" * 10_000
    assert error_in(error) == error[:LONGEST_LINE]


def printed_by(code: str, capfd: pytest.CaptureFixture[str]) -> tuple[str, str | None]:
    """Run code in a process that is captured; return what was passed on, and the error."""
    output = CoreOutput()
    with output.captured():
        child = subprocess.Popen([sys.executable, "-c", code])
    child.wait()
    error = output.close()
    return "".join(capfd.readouterr()), error


def test_output_is_passed_on_and_its_last_error_kept(capfd: pytest.CaptureFixture[str]) -> None:
    code = "import os; print('one'); print('x' * 100_000); os.write(2, b'no end')"
    assert printed_by(code, capfd) == (f"one\n{'x' * 100_000}\nno end", None)
    code = "import sys; print('KeyError: 1', file=sys.stderr); raise ValueError('two\\nlines')"
    passed_on, error = printed_by(code, capfd)
    assert ("Traceback" in passed_on, error) == (True, "ValueError: two")


def test_a_reader_ends_although_another_process_has_its_pipes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DRAIN_S", 0.1)
    note, sleeper = tmp_path / "pid", [sys.executable, "-c", "import time; time.sleep(600)"]
    begin = f"import subprocess; pid = subprocess.Popen({sleeper}).pid; "
    assert printed_by(f"{begin}open({str(note)!r}, 'w').write(str(pid))", capfd) == ("", None)
    sleeping = psutil.Process(int(note.read_text()))
    assert sleeping.status() != psutil.STATUS_ZOMBIE
    sleeping.kill()


def test_the_output_of_this_process_is_its_own_again(capfd: pytest.CaptureFixture[str]) -> None:
    output = CoreOutput()
    with output.captured():
        os.write(1, b"captured\n")
    os.write(1, b"own\n")
    assert output.close() is None
    assert sorted(capfd.readouterr().out.splitlines()) == ["captured", "own"]


@contextmanager
def reading(target: int, note: int) -> Iterator[psutil.Popen]:
    """Run a reader that writes to the target; what a core prints is its standard input."""
    command = [sys.executable, "-I", "-S", reader.__file__, *map(str, (note, 0, target))]
    with psutil.Popen(
        command, stdin=subprocess.PIPE, bufsize=0, pass_fds=[note, target]
    ) as process:
        yield process
        process.stdin.close()
        assert process.wait(HUNG_S) == 0


# What vLLM 0.32 prints where a part of a model on two GPUs fails while it is made, or is asked.
FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
RANK = "(Worker_TP1 pid=8) ERROR 11-22 19:50:01 [multiproc_executor.py:953] "
OTHER = "(Worker_TP0 pid=7) ERROR 11-22 19:50:02 [multiproc_executor.py:953] "
LOST = "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94"
MADE = (
    f"{PREFIX}Exception: WorkerProc initialization failed due to an exception in a background "
    "process. See stack trace for root cause."
)
ASKED = (
    f"{PREFIX}RuntimeError: Worker failed with error 'CUDA out of memory. Tried to allocate "
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
        with reading(log.fileno(), note.fileno()) as process:
            process.stdin.write(text)
        noted = note.read().decode().partition("\n")[0]
    assert (tmp_path / "log").read_bytes() == text
    assert noted == error
    assert is_out_of_memory(noted) == (error == FULL)
    assert isinstance(blamed(RuntimeError(noted), noted), MachineUnfit) == (error == LOST)


def test_a_core_can_print_although_nobody_reads_it(tmp_path: Path) -> None:
    unread, target = os.pipe()
    os.close(unread)
    with (tmp_path / "note").open("w+b") as note:
        with reading(target, note.fileno()) as process:
            process.stdin.write(LINES + b"ValueError: no\n")
        assert note.read() == b"ValueError: no\n"
    os.close(target)


def test_a_target_that_takes_only_a_part_at_a_time_gets_everything(tmp_path: Path) -> None:
    read, target = os.pipe()
    os.set_blocking(target, False)
    with (tmp_path / "note").open("w+b") as note, reading(target, note.fileno()) as process:
        # More than two pipes hold: the target is full, and the reader has more for it.
        process.stdin.write(LINES[:150_000])
        wait_until(lambda: process.status() != psutil.STATUS_RUNNING)
        os.close(target)
        with ThreadPoolExecutor() as pool, os.fdopen(read, "rb") as passed_on:
            all_of_it = pool.submit(passed_on.read)
            process.stdin.write(LINES[150_000:])
            process.stdin.close()
            assert all_of_it.result() == LINES


def test_an_error_that_can_not_be_noted_is_passed_on(tmp_path: Path) -> None:
    (tmp_path / "note").touch()
    with (
        (tmp_path / "log").open("wb") as log,
        (tmp_path / "note").open("rb") as note,
        reading(log.fileno(), note.fileno()) as process,
    ):
        process.stdin.write(b"ValueError: no\n" + LINES)
    assert (tmp_path / "log").read_bytes() == b"ValueError: no\n" + LINES
