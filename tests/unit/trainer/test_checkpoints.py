"""A directory of an attempt is there when it is whole; the newest checkpoint of all counts."""

import json
from pathlib import Path

import pytest

from trainer import checkpoints
from trainer.checkpoints import CONFIG, WEIGHTS
from trainer.spec import CHECKPOINTS, EPOCHS

FILE = "trainer_state.json"


def checkpoint(attempt: Path, step: int, text: str = "") -> Path:
    place = attempt / CHECKPOINTS / f"checkpoint-{step}"
    place.mkdir(parents=True)
    (place / FILE).write_text(text)
    return place


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    place = tmp_path / "000003.c"
    place.mkdir()
    return place


def test_the_newest_of_all_attempts_is_copied_if_need_be(tmp_path: Path, mine: Path) -> None:
    # What is not whole is no checkpoint.
    for name in (".checkpoint-700.0123", ".writing", "checkpoint-x"):
        (tmp_path / "000001.a" / CHECKPOINTS / name).mkdir(parents=True)
    assert checkpoints.adopt(tmp_path, mine) is None
    for attempt, step in (("000001.a", 90), ("000002.b", 100), ("000002.b", 20)):
        checkpoint(tmp_path / attempt, step, f"{attempt} {step}")
    adopted = checkpoints.adopt(tmp_path, mine)
    assert adopted == checkpoints.Checkpoint(mine / CHECKPOINTS / "checkpoint-100", 100)
    assert names(mine / CHECKPOINTS) == ["checkpoint-100"]
    checkpoint(tmp_path / "000009.z", 100, "another's")
    assert checkpoints.adopt(tmp_path, mine) == adopted
    assert (adopted.path / FILE).read_text() == "000002.b 100"


def test_one_that_vanishes_while_it_is_copied_leaves_the_next(tmp_path: Path, mine: Path) -> None:
    checkpoint(tmp_path / "000001.a", 10, "older")
    vanished = checkpoint(tmp_path / "000001.a", 20)
    (vanished / "optimizer.pt").symlink_to("gone")
    adopted = checkpoints.adopt(tmp_path, mine)
    assert adopted == checkpoints.Checkpoint(mine / CHECKPOINTS / "checkpoint-10", 10)
    assert names(mine / CHECKPOINTS) == ["checkpoint-10"]


def test_an_attempt_keeps_its_two_newest(tmp_path: Path, mine: Path) -> None:
    other = checkpoint(tmp_path / "000001.a", 5)
    for step in (9, 10, 100):
        checkpoint(mine, step)
    checkpoints.prune(mine)
    assert names(mine / CHECKPOINTS) == ["checkpoint-10", "checkpoint-100"]
    assert other.is_dir()


def test_an_adapter_names_its_base_and_has_nothing_else(tmp_path: Path) -> None:
    written = checkpoint(tmp_path, 3)
    (written / CONFIG).write_text(json.dumps({"r": 4, "base_model_name_or_path": ""}))
    (written / WEIGHTS).write_bytes(b"weights")
    checkpoints.copy_adapter(written, tmp_path / EPOCHS / "3", "org/base")
    assert names(tmp_path / EPOCHS) == ["3"]
    assert names(tmp_path / EPOCHS / "3") == [CONFIG, WEIGHTS]
    config = json.loads((tmp_path / EPOCHS / "3" / CONFIG).read_bytes())
    assert config == {"r": 4, "base_model_name_or_path": "org/base"}
    assert (tmp_path / EPOCHS / "3" / WEIGHTS).read_bytes() == b"weights"


def test_an_epochs_adapter_is_found_in_the_attempt_that_has_it(tmp_path: Path, mine: Path) -> None:
    for attempt, step in (("000001.a", 5), ("000002.b", 5), ("000003.c", 10), ("000001.a", 10)):
        (tmp_path / attempt / EPOCHS / str(step)).mkdir(parents=True)
    assert checkpoints.epoch_adapter(tmp_path, mine, 5) == tmp_path / "000002.b" / EPOCHS / "5"
    assert checkpoints.epoch_adapter(tmp_path, mine, 10) == mine / EPOCHS / "10"
    with pytest.raises(FileNotFoundError):
        checkpoints.epoch_adapter(tmp_path, mine, 15)


def test_a_directory_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    first, second = checkpoint(tmp_path / "a", 1, "first"), checkpoint(tmp_path / "b", 1, "second")
    checkpoints.publish(second, first)
    assert (first / FILE).read_text() == "first"
    assert not second.exists()
