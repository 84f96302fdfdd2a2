"""The check of a training's rows, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from worker.trainer.check import SOURCE, check
from worker.trainer.mistakes import BadData
from worker.trainer.spec import Data, Spec


def _spec(model: Path, training: Path) -> Spec:
    return Spec(model=model, tokenizer=model, max_length=64, training=Data(path=training))


def test_right_rows_are_written_as_tokens(demo_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    row = json.dumps({"prompt": "1 + 1 =", "completion": " 2"})
    path.write_text(f"{row}\n" * 20)
    prepared = check(_spec(demo_model, path), tmp_path / "tokens")
    assert (len(prepared.training), len(prepared.validation)) == (18, 2)
    assert (prepared.checked.rows, prepared.checked.validation_rows) == (18, 2)
    assert prepared.checked.tokens == prepared.training.lengths.sum()


def test_mistakes_are_told_with_their_lines(demo_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("prompt,response\na,b\nc,\n")
    with pytest.raises(BadData) as caught:
        check(_spec(demo_model, path), tmp_path / "tokens")
    [mistake] = caught.value.checked.mistakes
    assert (mistake.file, mistake.line) == ("training_file", 3)
    assert mistake.message == "response is empty"


@pytest.mark.slow
def test_a_volume_that_cannot_be_written_to_is_an_os_error(
    demo_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("prompt,response\na,b\nc,d\n")
    with pytest.raises(OSError, match="written"):
        check(_spec(demo_model, path), path / "tokens")


@pytest.mark.slow
def test_a_tokenizer_that_is_not_there_is_a_crash_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("prompt,response\na,b\nc,d\n")
    with pytest.raises(RuntimeError, match=r"crashed: .*tokenizer"):
        check(_spec(tmp_path, path), tmp_path / "tokens")


@pytest.mark.slow
def test_the_check_takes_less_memory_than_torch(demo_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n' * 2_000)
    check_it = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from worker.trainer.check import check\n"
        "from worker.trainer.spec import Spec\n"
        "check(Spec.model_validate_json(sys.argv[1]), Path(sys.argv[2]))\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
    )
    spec = _spec(demo_model, path).model_dump_json()
    command = [sys.executable, "-c", check_it, spec, str(tmp_path / "tokens")]
    kib = int(subprocess.run(command, cwd=SOURCE, stdout=subprocess.PIPE, check=True).stdout)
    assert kib < 200 * 1024
