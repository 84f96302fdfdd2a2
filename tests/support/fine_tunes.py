"""Helpers for tests of fine-tunes: their files on a volume, and trainers that follow a script."""

import asyncio
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil

from support.engine.scripted import settings
from worker.engine import BaseModelHandle, Model
from worker.fine_tunes.record import FineTune, FineTuneResult, FineTunes, StoredFineTune
from worker.fine_tunes.spec import (
    ATTEMPTS_DIR,
    EVENTS_FILE,
    Event,
    Hyperparameters,
    ResumeEvent,
)
from worker.fine_tunes.step import WIND_DOWN_S, FineTuneStep
from worker.long_work.records import REQUEST
from worker.long_work.runner import RunOutcome, Turn, WorkLine, run_steps
from worker.progress import Progress

SCRIPTED_TRAINER = Path(__file__).parent / "trainers" / "scripted.py"
COMMAND = (sys.executable, "-I", "-S", str(SCRIPTED_TRAINER))
ID, ROWS = "ftjob-" + "a" * 24, "file-" + "a" * 24
CSV = b"prompt,response\na,b\n"

# Operations of a scripted trainer, in their order.
Script = Sequence[Sequence[Any]]
CHECKED: Script = [["checked", {"rows": 3}], ["step", 5]]
DONE: Script = [
    *CHECKED,
    *(["epoch", 5], ["step", 10], ["epoch", 10]),
    ["over", {"trained_tokens": 7}],
]

# Fine-tunes on a volume, with the events of their attempts.


def upload_file(fine_tunes: FineTunes, content: bytes = CSV, purpose: str = "fine-tune") -> str:
    """Upload a file; return its id."""
    return fine_tunes.files.receive([content], filename="a.csv", purpose=purpose).id


def create_fine_tune(fine_tunes: FineTunes, created_at: int = 100, **more: Any) -> FineTune:
    values = {"created_at": created_at, "base": "demo", **more}
    training, id = upload_file(fine_tunes), fine_tunes.volume.location.new_id(FineTunes.id_prefix)
    return fine_tunes.create(StoredFineTune(id=id, training_file=training, **values))


def loss_event(step: int, value: float, at: float = 200) -> Event:
    metrics = {"loss": value, "grad_norm": 0.5, "learning_rate": 0.002, "epoch": step / 10}
    return Event(at=at, message=str(metrics), step=step, metrics=metrics)


def eval_loss_event(step: int, value: float, at: float = 200) -> Event:
    metrics = {"eval_loss": value, "eval_runtime": 0.1, "epoch": step / 10}
    return Event(at=at, message=str(metrics), step=step, metrics=metrics)


def write_events(
    fine_tune: FineTune, events: Iterable[Event], attempt: str = "000001.aa", resumed_at: int = 0
) -> Path:
    """Write the events of an attempt; return the path of their file."""
    path = fine_tune.directory / ATTEMPTS_DIR / attempt / EVENTS_FILE
    path.parent.mkdir(parents=True)
    lines = [ResumeEvent(resumed_at=resumed_at), *events]
    path.write_text("".join(f"{line.model_dump_json()}\n" for line in lines))
    return path


# Fine-tunes whose trainer follows a script.


def scripted_fine_tune(root: Path, *scripts: Script, id: str = ID, **values: Any) -> FineTune:
    """Create a fine-tune whose attempts follow these scripts.

    Further attempts repeat the last script.
    """
    fine_tune = FineTune(root / "worker" / "fine_tunes" / id)
    values = {"created_at": 1_700_000_000, "base": "org/demo", **values}
    request = StoredFineTune(id=id, training_file=ROWS, spec=Hyperparameters(epochs=2), **values)
    fine_tune.write_file(REQUEST, request)
    (fine_tune.directory / "script.json").write_text(json.dumps(scripts))
    # Adds it to the indexes.
    records_of(fine_tune).sweep()
    return fine_tune


def records_of(fine_tune: FineTune) -> FineTunes:
    """Return all fine-tunes on the volume of this fine-tune."""
    return FineTunes(settings(FILES_PATH=str(fine_tune.directory.parents[2])))


async def accept_adapter(_: Path) -> None: ...


async def run_attempt(
    fine_tune: FineTune,
    seconds: float = 3600,
    progress: Progress | None = None,
    closed_at: Callable[[], float] = lambda: math.inf,
    line: WorkLine | None = None,
    **options: Any,
) -> RunOutcome:
    """Run an attempt at a fine-tune, as a job does.

    Args:
        fine_tune: Fine-tune to run.
        seconds: Seconds until the end of the job's time.
        progress: Progress of the job.
        closed_at: Returns when the worker's shutdown began.
        line: Line of the worker's fine-tunes.
        options: Options of the step, ``check_adapter`` and fields of the base model. The volume of
            the adapters is ``base_path``, by default that of the fine-tune.
    """
    fine_tunes, root = records_of(fine_tune), fine_tune.directory.parents[2]
    if not fine_tunes.files.exists(ROWS):
        fine_tunes.files.receive([CSV], filename="a.csv", purpose="fine-tune", id=ROWS)
    base_path = options.pop("base_path", root)
    check_adapter = options.pop("check_adapter", accept_adapter)
    model = Model(
        ("demo",),
        8,
        "cpu",
        frozenset({"generate"}),
        **{"directory": root, **options.pop("model", {})},
    )
    step = FineTuneStep(
        fine_tunes,
        fine_tune,
        cast(BaseModelHandle, SimpleNamespace(model=model, check_adapter=check_adapter)),
        settings(FILES_PATH=str(root), BASE_PATH=str(base_path)),
        progress or Progress(),
        **options,
    )
    turn = Turn(fine_tune, seconds - WIND_DOWN_S, closed_at)
    return await run_steps(fine_tunes, fine_tune, turn, step, line or WorkLine(1))


def start_attempt(fine_tune: FineTune, **options: Any) -> asyncio.Task[RunOutcome]:
    return asyncio.create_task(run_attempt(fine_tune, **options))


def trainer_pids(fine_tune: FineTune) -> list[int]:
    """Return the ids of all processes that have trained, the oldest first."""
    path = fine_tune.directory / "pids"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def running_trainers(fine_tune: FineTune) -> list[int]:
    """Return the ids of trainers that still exist, including zombies."""
    return [pid for pid in trainer_pids(fine_tune) if psutil.pid_exists(pid)]


def result_of(fine_tune: FineTune) -> FineTuneResult:
    result = fine_tune.result
    assert result
    return result


def failure_of(fine_tune: FineTune) -> tuple[str, str, str | None]:
    """Return the code, the message and the field of a failed fine-tune's error."""
    result = result_of(fine_tune)
    assert (result.status, bool(result.error)) == ("failed", True)
    assert result.error
    return result.error.code, result.error.message, result.error.param


def adapters(root: Path) -> list[Path]:
    """Return all entries of the adapters' directory, including hidden ones."""
    directory = root / "adapters"
    return sorted(directory.iterdir()) if directory.is_dir() else []
