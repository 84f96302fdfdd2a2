"""The processes that check rows and train: their files and their exit statuses."""

import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support import ROOT
from support.models.lora import fake_client
from support.processes.background import wait_until
from support.trainers.real import events_of, start_attempt, write_training
from support.volume import fill, mount_disk

from trainer.tokens import check_and_tokenize_in_process
from worker.engine.run.adapters.files import AdapterChecker
from worker.fine_tunes.spec import (
    ATTEMPTS_DIR,
    CHECKPOINTS_DIR,
    EPOCHS_DIR,
    EVENTS_FILE,
    OUTCOME_FILE,
    SPEC_FILE,
    ExitStatus,
    Outcome,
    RowsFile,
    Spec,
)
from worker.volume.adapters import CONFIG, FILES

LIMIT_S = 120
ROWS = 24


def run_attempt(directory: Path, attempt: str = "000001.a") -> tuple[int, str]:
    """Run an attempt to its end; return its exit status and its stderr."""
    with start_attempt(directory, attempt) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.read() == ""
        return process.wait(LIMIT_S), process.stderr.read()


def outcome_of(attempt: Path) -> Outcome:
    return Outcome.model_validate_json((attempt / OUTCOME_FILE).read_bytes())


@pytest.mark.slow
def test_a_training_leaves_an_adapter_that_vllm_can_serve(demo_model: Path, tmp_path: Path) -> None:
    write_training(tmp_path, demo_model, ROWS, epochs=2)
    assert run_attempt(tmp_path) == (ExitStatus.FINISHED, "")
    attempt = tmp_path / ATTEMPTS_DIR / "000001.a"
    outcome = outcome_of(attempt)
    assert (outcome.check.rows, outcome.check.validation_rows) == (22, 2)
    assert (outcome.is_over, outcome.error) == (True, None)
    assert (outcome.steps, outcome.batch_size) == (12, 4)
    assert outcome.trained_tokens == outcome.check.tokens * 2
    events = events_of(attempt)
    numbers = [(one["step"], one["metrics"].get("eval_loss")) for one in events]
    found = {step: loss for step, loss in numbers if loss is not None}
    assert outcome.best_loss == min(found.values()) == found[outcome.best_step]
    checks = AdapterChecker(fake_client(demo_model).vllm_config)
    adapters = [*(attempt / EPOCHS_DIR).iterdir()]
    assert str(outcome.best_step) in [adapter.name for adapter in adapters]
    for adapter in adapters:
        assert sorted(path.name for path in adapter.iterdir()) == sorted(FILES)
        checks.check_files(adapter)
        assert str(demo_model) not in (adapter / CONFIG).read_text()
    names = {path.name for path in attempt.iterdir()}
    assert names == {EVENTS_FILE, CHECKPOINTS_DIR, EPOCHS_DIR, OUTCOME_FILE}
    assert not [path for path in attempt.rglob("*") if path.name.startswith(".")]
    messages = [event["message"] for event in events]
    assert any(message.startswith("Data checked: 22 rows to train on") for message in messages)
    assert any(message.startswith("Model loaded in ") for message in messages)
    assert {"Epoch 1 saved", "Epoch 2 saved"} <= {*messages}


def test_mistakes_end_an_attempt_before_the_model_is_read(demo_model: Path, tmp_path: Path) -> None:
    spec = write_training(tmp_path, demo_model, ROWS)
    with spec.training.path.open("a") as rows:
        rows.write('{"prompt": 1}\n')
    model = shutil.copytree(demo_model, tmp_path / "model")
    (model / "model.safetensors").unlink()
    changed = spec.model_copy(update={"model": model, "tokenizer": model})
    (tmp_path / SPEC_FILE).write_text(changed.model_dump_json())
    assert run_attempt(tmp_path) == (ExitStatus.FINISHED, "")
    attempt = tmp_path / ATTEMPTS_DIR / "000001.a"
    outcome = outcome_of(attempt)
    assert outcome.is_over
    assert [mistake.line for mistake in outcome.check.mistakes] == [ROWS + 1]
    assert outcome.error
    assert outcome.error.startswith(f"training_file, line {ROWS + 1}: ")
    assert events_of(attempt)[-1]["level"] == "error"


def test_sigterm_ends_an_attempt_immediately_while_it_loads(
    demo_model: Path, tmp_path: Path
) -> None:
    write_training(tmp_path, demo_model, ROWS)
    with start_attempt(tmp_path, "000001.a") as process:
        wait_until((tmp_path / ATTEMPTS_DIR / "000001.a" / EVENTS_FILE).exists)
        process.terminate()
        assert process.wait(LIMIT_S) == ExitStatus.STOPPED


def test_the_last_line_of_a_crash_is_its_reason(tmp_path: Path) -> None:
    (tmp_path / SPEC_FILE).write_text('{"model": "m"}')
    status, stderr = run_attempt(tmp_path)
    assert status == ExitStatus.CRASHED
    assert stderr.splitlines()[-1].startswith("ValidationError: ")


@pytest.mark.slow
@pytest.mark.parametrize("free_bytes", [0, 300_000, 900_000])
def test_a_full_volume_has_its_own_status_and_the_next_attempt_continues(
    demo_model: Path, tmp_path: Path, free_bytes: int
) -> None:
    with mount_disk(tmp_path / "disk", 6_000_000) as disk:
        write_training(disk, demo_model, ROWS, epochs=2)
        filler = fill(disk, free_bytes)
        status, stderr = run_attempt(disk)
        assert (status, "Traceback" in stderr) == (ExitStatus.VOLUME_FAILURE, False)
        assert "the volume" in stderr.splitlines()[-1]
        names = {path.name for path in disk.glob(f"{ATTEMPTS_DIR}/*/*")}
        assert names <= {EVENTS_FILE, CHECKPOINTS_DIR, EPOCHS_DIR, OUTCOME_FILE}
        if OUTCOME_FILE in names:
            assert not outcome_of(disk / ATTEMPTS_DIR / "000001.a").is_over
        filler.unlink()
        assert run_attempt(disk, "000002.b") == (ExitStatus.FINISHED, "")
        assert outcome_of(disk / ATTEMPTS_DIR / "000002.b").error is None


def create_spec(model: Path, tmp_path: Path, rows: str) -> Spec:
    path = tmp_path / "rows.csv"
    path.write_text(f"prompt,response\n{rows}")
    return Spec(model=model, tokenizer=model, max_length=64, training=RowsFile(path=path))


@pytest.mark.slow
def test_a_failing_volume_and_a_missing_tokenizer_raise_different_errors(
    demo_model: Path, tmp_path: Path
) -> None:
    spec = create_spec(demo_model, tmp_path, "a,b\nc,d\n")
    with pytest.raises(NotADirectoryError):
        check_and_tokenize_in_process(spec, tmp_path / "rows.csv" / "tokens")
    with pytest.raises(RuntimeError, match=r"crashed: .*tokenizer"):
        check_and_tokenize_in_process(
            spec.model_copy(update={"tokenizer": tmp_path}), tmp_path / "tokens"
        )


def test_the_check_ends_with_the_process_that_started_it(demo_model: Path, tmp_path: Path) -> None:
    write_training(tmp_path, demo_model, 50_000)
    with start_attempt(tmp_path, "000001.a") as process:
        family = psutil.Process(process.pid)
        wait_until(lambda: family.children() != [])
        [checker] = family.children()
        process.kill()
        assert psutil.wait_procs([checker], LIMIT_S)[1] == []


@pytest.mark.slow
def test_the_check_takes_less_memory_than_torch(demo_model: Path, tmp_path: Path) -> None:
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from trainer.tokens import check_and_tokenize_in_process\n"
        "from worker.fine_tunes.spec import Spec\n"
        "check_and_tokenize_in_process(Spec.model_validate_json(sys.argv[1]), Path(sys.argv[2]))\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
    )
    spec = create_spec(demo_model, tmp_path, "a,b\n" * 2_000).model_dump_json()
    command = [sys.executable, "-c", script, spec, str(tmp_path / "tokens")]
    assert int(subprocess.check_output(command, cwd=ROOT / "src")) < 200 * 1024
