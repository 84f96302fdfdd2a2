"""What a core prints: passed on, and the last error in it."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from worker.engine.run.healing import output as module
from worker.engine.run.healing.output import CoreOutput
from worker.engine.start.fitting import is_out_of_memory
from worker.engine.start.refusals import blamed
from worker.errors import MachineUnfit


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


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", True),
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94", False),
    ],
)
def test_an_error_of_a_part_is_about_memory_or_the_machines_fault(
    error: str, *, is_full: bool
) -> None:
    assert is_out_of_memory(error) is is_full
    assert isinstance(blamed(RuntimeError(error), error), MachineUnfit) is not is_full
