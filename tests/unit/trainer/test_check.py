"""The check of a training's rows, in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from worker.trainer.check import SOURCE, Prepared, check
from worker.trainer.mistakes import BadData
from worker.trainer.spec import Data, Spec


def spec_of(model: Path, tmp_path: Path, rows: str) -> Spec:
    path = tmp_path / "rows.csv"
    path.write_text(f"prompt,response\n{rows}")
    return Spec(model=model, tokenizer=model, max_length=64, training=Data(path=path))


def checked(model: Path, tmp_path: Path, rows: str, place: str = "tokens") -> Prepared:
    return check(spec_of(model, tmp_path, rows), tmp_path / place)


def test_right_rows_are_written_as_tokens(demo_model: Path, tmp_path: Path) -> None:
    prepared = checked(demo_model, tmp_path, "1 + 1 =, 2\n" * 20)
    assert (len(prepared.training), len(prepared.validation)) == (18, 2)
    assert (prepared.checked.rows, prepared.checked.validation_rows) == (18, 2)
    assert prepared.checked.tokens == prepared.training.lengths.sum()


def test_mistakes_are_told_with_their_lines(demo_model: Path, tmp_path: Path) -> None:
    with pytest.raises(BadData) as caught:
        checked(demo_model, tmp_path, "a,b\nc,\n")
    [mistake] = caught.value.checked.mistakes
    expected = ("training_file", 3, "response is empty")
    assert (mistake.file, mistake.line, mistake.message) == expected


@pytest.mark.slow
def test_a_volume_that_fails_and_a_tokenizer_that_is_not_there_are_told_apart(
    demo_model: Path, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="written"):
        checked(demo_model, tmp_path, "a,b\nc,d\n", place="rows.csv/tokens")
    with pytest.raises(RuntimeError, match=r"crashed: .*tokenizer"):
        checked(tmp_path, tmp_path, "a,b\nc,d\n")


@pytest.mark.slow
def test_the_check_takes_less_memory_than_torch(demo_model: Path, tmp_path: Path) -> None:
    check_it = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from worker.trainer.check import check\n"
        "from worker.trainer.spec import Spec\n"
        "check(Spec.model_validate_json(sys.argv[1]), Path(sys.argv[2]))\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
    )
    spec = spec_of(demo_model, tmp_path, "a,b\n" * 2_000).model_dump_json()
    command = [sys.executable, "-c", check_it, spec, str(tmp_path / "tokens")]
    assert int(subprocess.check_output(command, cwd=SOURCE)) < 200 * 1024
