"""What attempts write: events, and directories that appear only when complete."""

import json
import math
from pathlib import Path

import pytest

from trainer import output
from trainer.output import EventLog
from worker.fine_tunes.spec import CHECKPOINTS_DIR, EPOCHS_DIR
from worker.volume.adapters import CONFIG, WEIGHTS


def test_metrics_are_logged_once_and_as_valid_json(tmp_path: Path) -> None:
    logs = {"loss": math.nan, "grad_norm": math.inf, "epoch": 0.5}
    with EventLog(tmp_path / "e", 7) as events:
        events.write("Two\nlines", 7, "warn")
        # Steps are repeated after a fallback to fewer rows.
        for loss in (1.0, 1.5):
            events.write_metrics({"loss": loss}, 8)
            events.write_metrics({"eval_loss": loss}, 8)
        events.write_metrics(logs, 9)
        # Lines are readable while the training runs.
        text = (tmp_path / "e").read_text()
    first, *entries = [json.loads(line, parse_constant=str.upper) for line in text.splitlines()]
    assert first == {"resumed_at": 7}
    assert [(one["message"], one["step"], one["level"], one["metrics"]) for one in entries] == [
        ("Two\nlines", 7, "warn", {}),
        ("{'loss': 1.0}", 8, "info", {"loss": 1.0}),
        ("{'eval_loss': 1.0}", 8, "info", {"eval_loss": 1.0}),
        (str(logs), 9, "info", {"epoch": 0.5}),
    ]


FILE = "trainer_state.json"


def checkpoint(attempt: Path, step: int, text: str = "") -> Path:
    directory = attempt / CHECKPOINTS_DIR / f"checkpoint-{step}"
    directory.mkdir(parents=True)
    (directory / FILE).write_text(text)
    return directory


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def attempt_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "000003.c"
    directory.mkdir()
    return directory


def test_the_newest_checkpoint_is_copied_if_another_attempt_has_it(
    tmp_path: Path, attempt_dir: Path
) -> None:
    # An incomplete directory is not a checkpoint.
    for name in (".checkpoint-700.0123", ".writing", "checkpoint-x"):
        (tmp_path / "000001.a" / CHECKPOINTS_DIR / name).mkdir(parents=True)
    assert output.copy_newest_checkpoint(tmp_path, attempt_dir) is None
    for attempt, step in (("000001.a", 90), ("000002.b", 100), ("000002.b", 20)):
        checkpoint(tmp_path / attempt, step, f"{attempt} {step}")
    newest = output.copy_newest_checkpoint(tmp_path, attempt_dir)
    assert newest == output.Checkpoint(attempt_dir / CHECKPOINTS_DIR / "checkpoint-100", 100)
    assert names(attempt_dir / CHECKPOINTS_DIR) == ["checkpoint-100"]
    checkpoint(tmp_path / "000009.z", 100, "another's")
    assert output.copy_newest_checkpoint(tmp_path, attempt_dir) == newest
    assert (newest.path / FILE).read_text() == "000002.b 100"


def test_the_next_checkpoint_is_copied_if_the_newest_vanishes(
    tmp_path: Path, attempt_dir: Path
) -> None:
    checkpoint(tmp_path / "000001.a", 10, "older")
    vanished = checkpoint(tmp_path / "000001.a", 20)
    (vanished / "optimizer.pt").symlink_to("gone")
    newest = output.copy_newest_checkpoint(tmp_path, attempt_dir)
    assert newest == output.Checkpoint(attempt_dir / CHECKPOINTS_DIR / "checkpoint-10", 10)
    assert names(attempt_dir / CHECKPOINTS_DIR) == ["checkpoint-10"]


def test_an_attempt_keeps_its_two_newest_checkpoints(tmp_path: Path, attempt_dir: Path) -> None:
    other = checkpoint(tmp_path / "000001.a", 5)
    for step in (9, 10, 100):
        checkpoint(attempt_dir, step)
    output.prune_checkpoints(attempt_dir)
    assert names(attempt_dir / CHECKPOINTS_DIR) == ["checkpoint-10", "checkpoint-100"]
    assert other.is_dir()


def test_an_adapter_names_its_base_model_and_has_only_its_own_files(tmp_path: Path) -> None:
    written = checkpoint(tmp_path, 3)
    (written / CONFIG).write_text(json.dumps({"r": 4, "base_model_name_or_path": ""}))
    (written / WEIGHTS).write_bytes(b"weights")
    output.copy_adapter(written, tmp_path / EPOCHS_DIR / "3", "org/base")
    assert names(tmp_path / EPOCHS_DIR) == ["3"]
    assert names(tmp_path / EPOCHS_DIR / "3") == [CONFIG, WEIGHTS]
    config = json.loads((tmp_path / EPOCHS_DIR / "3" / CONFIG).read_bytes())
    assert config == {"r": 4, "base_model_name_or_path": "org/base"}
    assert (tmp_path / EPOCHS_DIR / "3" / WEIGHTS).read_bytes() == b"weights"
