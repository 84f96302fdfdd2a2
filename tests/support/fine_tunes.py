"""Fine-tunes in tests: their files on a volume, and a worker's means to train by a script."""

import asyncio
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil

from support.engine.scripted import settings
from trainer.spec import ATTEMPTS, EVENTS, Data, Event, Hyperparameters, Resumed, Spec
from worker.fine_tunes.record import FineTune, FineTunes
from worker.fine_tunes.request import FineTuneResult, StoredFineTune
from worker.fine_tunes.step import SPARE_S, train
from worker.fine_tunes.workshop import Bench, Workshop
from worker.long_work.attempt import Attempt
from worker.long_work.record import REQUEST
from worker.long_work.runner import How
from worker.volume import ids

SCRIPTED = Path(__file__).parent / "trainers" / "scripted.py"
COMMAND = (sys.executable, "-I", "-S", str(SCRIPTED))
ID, ROWS = "ftjob-" + "a" * 24, "file-" + "a" * 24
CSV = b"prompt,response\na,b\n"

# What a training writes and does, one thing after the other.
Script = Sequence[Sequence[Any]]
CHECKED: Script = [["checked", {"rows": 3}], ["step", 5]]
DONE: Script = [
    *CHECKED,
    *(["epoch", 5], ["step", 10], ["epoch", 10]),
    ["over", {"trained_tokens": 7}],
]

# In a store, with the events that attempts have written:


def uploaded(fine_tunes: FineTunes, content: bytes = CSV, purpose: str = "fine-tune") -> str:
    """Upload a file; return its id."""
    return fine_tunes.files.receive([content], filename="a.csv", purpose=purpose).id


def created(fine_tunes: FineTunes, created_at: int = 100, **more: Any) -> FineTune:
    values = {"created_at": created_at, "base": "demo", **more}
    training = uploaded(fine_tunes)
    return fine_tunes.create(
        StoredFineTune(id=ids.new(FineTunes.prefix), training_file=training, **values)
    )


def loss(step: int, value: float, at: float = 200) -> Event:
    metrics = {"loss": value, "grad_norm": 0.5, "learning_rate": 0.002, "epoch": step / 10}
    return Event(at=at, message=str(metrics), step=step, metrics=metrics)


def eval_loss(step: int, value: float, at: float = 200) -> Event:
    metrics = {"eval_loss": value, "eval_runtime": 0.1, "epoch": step / 10}
    return Event(at=at, message=str(metrics), step=step, metrics=metrics)


def write_events(
    fine_tune: FineTune, events: Iterable[Event], attempt: str = "000001.aa", resumed_at: int = 0
) -> Path:
    """Write the events of an attempt; return their file."""
    path = fine_tune.directory / ATTEMPTS / attempt / EVENTS
    path.parent.mkdir(parents=True)
    lines = [Resumed(resumed_at=resumed_at), *events]
    path.write_text("".join(f"{line.model_dump_json()}\n" for line in lines))
    return path


# Trained by a script:


def fine_tune_at(root: Path, *scripts: Script, id: str = ID, **values: Any) -> FineTune:
    """Create a fine-tune whose attempts play these scripts, the last one again and again."""
    found = FineTune(root / "worker" / "fine_tunes" / id)
    values = {"created_at": 1_700_000_000, "base": "org/demo", **values}
    request = StoredFineTune(id=id, training_file=ROWS, spec=Hyperparameters(epochs=2), **values)
    found.write(REQUEST, request)
    (found.directory / "script.json").write_text(json.dumps(scripts))
    return found


class ScriptedWorkshop(Workshop):
    """Trains by the script, and takes every adapter for a good one.

    Args:
        root: of the volume.
        changes: other attributes and methods, by their names.
    """

    def __init__(self, root: Path, **changes: Any) -> None:
        self.adapters, self.command = root / "adapters", COMMAND
        self.bench, self.room, self.nice = Bench(), None, True
        self._root = root
        vars(self).update(changes)

    def spec(self, _: FineTune) -> Spec:
        rows = Data(path=self._root / "rows.csv")
        return Spec(model=self._root, tokenizer=self._root, max_length=8, training=rows)

    def check_memory(self, _: Spec) -> None: ...

    async def check_adapter(self, _: Path) -> None: ...

    def write_results(self, _: FineTune) -> Sequence[str]:
        return ("file-metrics",)


def records_of(fine_tune: FineTune) -> FineTunes:
    """Return all fine-tunes of the volume that has one."""
    return FineTunes(settings(FILES_PATH=str(fine_tune.directory.parents[2])))


async def run(
    fine_tune: FineTune,
    workshop: Workshop,
    seconds: float = 3600,
    progress: dict[str, float] | None = None,
    closed_at: Callable[[], float] = lambda: math.inf,
) -> How:
    """Run a fine-tune as a job does."""
    attempt = Attempt(fine_tune, seconds - SPARE_S, closed_at)
    progress = {} if progress is None else progress
    return await train(records_of(fine_tune), fine_tune, workshop, attempt, progress)


def running(fine_tune: FineTune, workshop: Workshop, **options: Any) -> asyncio.Task[How]:
    return asyncio.create_task(run(fine_tune, workshop, **options))


def pids(fine_tune: FineTune) -> list[int]:
    """Return the ids of all processes that have trained, the oldest first."""
    path = fine_tune.directory / "pids"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def alive(fine_tune: FineTune) -> list[int]:
    """Return those of them that live; a zombie does, too, until its parent has taken notice."""
    return [pid for pid in pids(fine_tune) if psutil.pid_exists(pid)]


def result_of(fine_tune: FineTune) -> FineTuneResult:
    result = fine_tune.result
    assert result
    return result


def failure_of(fine_tune: FineTune) -> tuple[str, str, str | None]:
    """Return the code, the message and the field of why a fine-tune has failed."""
    result = result_of(fine_tune)
    assert (result.status, bool(result.error)) == ("failed", True)
    assert result.error
    return result.error.code, result.error.message, result.error.param


def adapters(root: Path) -> list[Path]:
    """Return all that is in the directory of the adapters, what is hidden, too."""
    directory = root / "adapters"
    return sorted(directory.iterdir()) if directory.is_dir() else []
