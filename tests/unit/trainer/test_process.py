"""The process that trains: what it leaves, and how it ends."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.disks import fill, mounted
from support.models.lora import LORA_CONFIG, client
from support.trainer import begun, events_of, written

from worker.engine.adapters.files import base_shapes, check_adapter
from worker.trainer.spec import (
    ATTEMPTS,
    CHECKED,
    CHECKPOINTS,
    EPOCHS,
    EVENTS,
    ONLY_CHECK,
    OUTCOME,
    RESULT,
    SPEC,
    TOKENS,
    Checked,
    Exit,
    Outcome,
    Resumed,
)
from worker.volume.adapters import CONFIG, FILES, WEIGHTS

LIMIT_S = 120
ROWS = 24


@contextmanager
def running(directory: Path, attempt: str, *options: str) -> "Iterator[subprocess.Popen[str]]":
    process = begun(directory, attempt, *options)
    with process:
        try:
            yield process
        finally:
            process.kill()


def ended(directory: Path, attempt: str = "000001.a", *options: str) -> tuple[int, str]:
    """Run an attempt to its end; return its status, and what it has said."""
    with running(directory, attempt, *options) as process:
        said, complained = _read(process)
        assert said == ""
        return process.returncode, complained


def _read(process: "subprocess.Popen[str]") -> tuple[str, str]:
    # Standard input stays open: its end would end the process.
    assert process.stdout
    assert process.stderr
    said, complained = process.stdout.read(), process.stderr.read()
    process.wait(LIMIT_S)
    return said, complained


def outcome_of(attempt: Path) -> Outcome:
    return Outcome.model_validate_json((attempt / OUTCOME).read_bytes())


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def step_of(attempt: Path) -> int:
    """Return the last step that was told."""
    with suppress(OSError, ValueError, IndexError):
        return int(events_of(attempt)[-1]["step"])
    return 0


def losses(*attempts: Path) -> dict[int, float]:
    """Return the losses of the rows held out by their steps, of later attempts first."""
    return {
        event["step"]: event["metrics"]["eval_loss"]
        for attempt in reversed(attempts)
        for event in events_of(attempt)
        if "eval_loss" in event["metrics"]
    }


def test_a_training_leaves_an_adapter_that_vllm_can_serve(demo_model: Path, tmp_path: Path) -> None:
    written(tmp_path, demo_model, ROWS, epochs=2)
    assert ended(tmp_path) == (Exit.OVER, "")
    attempt = tmp_path / ATTEMPTS / "000001.a"
    outcome = outcome_of(attempt)
    checked = Checked.model_validate_json((attempt / CHECKED).read_bytes())
    assert (checked.rows, checked.validation_rows) == (22, 2)
    assert (outcome.steps, outcome.batch_size, outcome.error) == (12, 4, None)
    assert outcome.trained_tokens == checked.tokens * 2
    found = losses(attempt)
    assert outcome.best_loss == min(found.values()) == found[outcome.best_step]
    base = base_shapes(client(demo_model).vllm_config.model_config, None)
    for adapter in (attempt / RESULT, *(attempt / EPOCHS).iterdir()):
        assert sorted(path.name for path in adapter.iterdir()) == sorted(FILES)
        check_adapter(adapter, LORA_CONFIG, base)
        assert str(demo_model) not in (adapter / CONFIG).read_text()
    best = attempt / EPOCHS / str(outcome.best_step)
    assert (attempt / RESULT / WEIGHTS).read_bytes() == (best / WEIGHTS).read_bytes()
    kept = {path.name for path in attempt.iterdir()}
    assert kept == {EVENTS, CHECKED, CHECKPOINTS, EPOCHS, RESULT, OUTCOME}
    assert not [path for path in attempt.rglob("*") if path.name.startswith(".")]
    told = [event["message"] for event in events_of(attempt)]
    assert any(message.startswith("Data checked: 22 rows to train on") for message in told)
    assert any(message.startswith("Model loaded in ") for message in told)
    assert {"Epoch 1 saved", "Epoch 2 saved"} <= {*told}


def test_mistakes_in_the_data_end_it_before_the_model_is_read(
    demo_model: Path, tmp_path: Path
) -> None:
    spec = written(tmp_path, demo_model, ROWS)
    with spec.training.path.open("a") as rows:
        rows.write('{"prompt": 1}\n')
    model = shutil.copytree(demo_model, tmp_path / "model")
    (model / "model.safetensors").unlink()
    changed = spec.model_copy(update={"model": model, "tokenizer": model})
    (tmp_path / SPEC).write_text(changed.model_dump_json())
    assert ended(tmp_path) == (Exit.OVER, "")
    attempt = tmp_path / ATTEMPTS / "000001.a"
    checked = Checked.model_validate_json((attempt / CHECKED).read_bytes())
    assert [mistake.line for mistake in checked.mistakes] == [ROWS + 1]
    error = outcome_of(attempt).error
    assert error
    assert error.startswith(f"training_file, line {ROWS + 1}: ")
    assert events_of(attempt)[-1]["level"] == "error"


@pytest.mark.slow
def test_only_the_rows_are_checked_where_that_is_asked(demo_model: Path, tmp_path: Path) -> None:
    spec = written(tmp_path, demo_model, ROWS)
    assert ended(tmp_path, "000001.a", ONLY_CHECK) == (Exit.OVER, "")
    attempt = tmp_path / ATTEMPTS / "000001.a"
    assert {path.name for path in attempt.iterdir()} == {EVENTS, CHECKED}
    # The attempt that trains tells of them.
    assert events_of(attempt) == []
    with spec.training.path.open("a") as rows:
        rows.write('{"prompt": 1}\n')
    assert ended(tmp_path, "000002.a", ONLY_CHECK) == (Exit.OVER, "")
    assert outcome_of(tmp_path / ATTEMPTS / "000002.a").error


def test_sigterm_ends_it_at_once_while_it_loads(demo_model: Path, tmp_path: Path) -> None:
    written(tmp_path, demo_model, ROWS)
    with running(tmp_path, "000001.a") as process:
        wait_for((tmp_path / ATTEMPTS / "000001.a" / EVENTS).exists)
        process.terminate()
        assert process.wait(LIMIT_S) == Exit.STOPPED


def test_a_crash_has_its_reason_in_the_last_line(tmp_path: Path) -> None:
    (tmp_path / SPEC).write_text('{"model": "m"}')
    status, said = ended(tmp_path)
    assert status == Exit.CRASHED
    assert said.splitlines()[-1].startswith("ValidationError: ")


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 4 * 4096, 300_000, 900_000])
def test_a_full_volume_is_told_apart_and_the_next_attempt_goes_on(
    demo_model: Path, tmp_path: Path, left: int
) -> None:
    with mounted(tmp_path / "disk", 6_000_000) as disk:
        written(disk, demo_model, ROWS, epochs=2)
        filler = fill(disk, left)
        status, said = ended(disk)
        assert status == Exit.VOLUME
        assert "Traceback" not in said
        assert "the volume" in said.splitlines()[-1]
        kept = {path.name for path in disk.glob(f"{ATTEMPTS}/*/*")}
        assert kept <= {EVENTS, CHECKED, CHECKPOINTS, EPOCHS, RESULT}
        filler.unlink()
        assert ended(disk, "000002.b") == (Exit.OVER, "")
        assert outcome_of(disk / ATTEMPTS / "000002.b").error is None


@pytest.fixture(scope="module")
def undisturbed(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train three epochs of 6 steps in one attempt; return its directory."""
    directory = tmp_path_factory.mktemp("undisturbed")
    written(directory, demo_model, ROWS, epochs=3)
    assert ended(directory) == (Exit.OVER, "")
    return directory / ATTEMPTS / "000001.a"


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 1, 7, 12, 18])
def test_a_killed_training_goes_on_to_the_same_end(
    demo_model: Path, tmp_path: Path, undisturbed: Path, step: int
) -> None:
    written(tmp_path, demo_model, ROWS, epochs=3)
    first, second = (tmp_path / ATTEMPTS / name for name in ("000001.a", "000002.b"))
    with running(tmp_path, first.name) as process:
        wait_for(lambda: (first / EVENTS).exists() and step_of(first) >= step)
        process.kill()
    kept = [int(path.name.rpartition("-")[2]) for path in first.glob(f"{CHECKPOINTS}/checkpoint-*")]
    assert ended(tmp_path, second.name) == (Exit.OVER, "")
    resumed = Resumed.model_validate_json((second / EVENTS).read_text().splitlines()[0])
    assert resumed.resumed_at == max(kept, default=0)
    expected, found = outcome_of(undisturbed), outcome_of(second)
    assert (found.steps, found.best_step) == (18, expected.best_step)
    assert losses(first, second) == pytest.approx(losses(undisturbed), abs=1e-3)
    assert sorted(path.name for path in (second / RESULT).iterdir()) == sorted(FILES)


@pytest.mark.slow
def test_sigterm_leaves_a_checkpoint_of_the_step(demo_model: Path, tmp_path: Path) -> None:
    written(tmp_path, demo_model, ROWS, epochs=10)
    first, second = (tmp_path / ATTEMPTS / name for name in ("000001.a", "000002.b"))
    with running(tmp_path, first.name) as process:
        wait_for(lambda: step_of(first) >= 2)
        process.terminate()
        assert process.wait(LIMIT_S) == Exit.STOPPED
    last = step_of(first)
    assert ended(tmp_path, second.name) == (Exit.OVER, "")
    resumed = json.loads((second / EVENTS).read_text().splitlines()[0])
    assert resumed == {"resumed_at": last}
    assert outcome_of(second).steps == 60


@pytest.mark.slow
def test_two_attempts_at_once_do_not_harm_each_other(demo_model: Path, tmp_path: Path) -> None:
    written(tmp_path, demo_model, ROWS, epochs=10)
    first, second = (tmp_path / ATTEMPTS / name for name in ("000001.a", "000002.b"))
    with running(tmp_path, first.name) as process:
        wait_for(lambda: step_of(first) >= 6)
        assert ended(tmp_path, second.name) == (Exit.OVER, "")
        assert _read(process) == ("", "")
        assert process.returncode == Exit.OVER
    found = outcome_of(first), outcome_of(second)
    assert [outcome.steps for outcome in found] == [60, 60]
    assert found[0].best_loss == pytest.approx(found[1].best_loss, abs=1e-3)
    assert not (second / TOKENS).exists()
