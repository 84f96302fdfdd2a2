"""Fine-tunes in tests: their directories, and a worker's means to train by a script."""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from worker.fine_tunes.attempt import Progress
from worker.fine_tunes.request import Kept, Result, Source
from worker.fine_tunes.runner import How, Runner
from worker.fine_tunes.state import FineTune
from worker.fine_tunes.workshop import Bench, Workshop
from worker.trainer.spec import Data, Hyperparameters, Spec
from worker.volume.record import REQUEST

SCRIPTED = Path(__file__).parent / "trainers" / "scripted.py"
COMMAND = (sys.executable, "-I", "-S", str(SCRIPTED))
ID, ROWS = "ftjob-" + "a" * 24, "file-" + "a" * 24

# What a training tells and does, one thing after the other.
Script = Sequence[Sequence[Any]]
CHECKED: Script = [["checked", {"rows": 3}], ["step", 5]]
DONE: Script = [
    *CHECKED,
    ["epoch", 5],
    ["step", 10],
    ["epoch", 10],
    ["over", {"trained_tokens": 7}],
]


def fine_tune_at(root: Path, *scripts: Script, id: str = ID, **kept: Any) -> FineTune:
    """Create a fine-tune whose attempts play these scripts, the last one again and again."""
    found = FineTune(root / "worker" / "fine_tunes" / id)
    values = {"created_at": 1_700_000_000, "base": "org/demo", **kept}
    request = Kept(id=id, training=Source(file_id=ROWS), spec=Hyperparameters(epochs=2), **values)
    found.write(REQUEST, request)
    (found.directory / "script.json").write_text(json.dumps(scripts))
    return found


def workshop_at(root: Path, **changes: Any) -> Workshop:
    """Return what trains by the script, and takes every adapter for a good one."""

    async def check(_: Path) -> None: ...

    def spec(_: FineTune) -> Spec:
        rows = Data(path=root / "rows.csv")
        return Spec(model=root, tokenizer=root, max_length=8, training=rows)

    workshop = Workshop(
        spec=spec,
        fits=lambda _: None,
        check=check,
        results=lambda _: ("file-metrics",),
        adapters=root / "adapters",
        closed=lambda: False,
        command=COMMAND,
        bench=Bench(),
    )
    return replace(workshop, **changes)


async def run(
    fine_tune: FineTune,
    workshop: Workshop,
    seconds: float = 3600,
    progress: Progress | None = None,
) -> How:
    """Run a fine-tune as a job does."""
    return await Runner(fine_tune, workshop, progress or Progress()).run(seconds)


def running(fine_tune: FineTune, workshop: Workshop, **given: Any) -> asyncio.Task[How]:
    return asyncio.create_task(run(fine_tune, workshop, **given))


def pids(fine_tune: FineTune) -> list[int]:
    """Return the ids of all processes that have trained, the oldest first."""
    try:
        lines = (fine_tune.directory / "pids").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [int(line) for line in lines]


def alive(fine_tune: FineTune) -> list[int]:
    """Return those of them that live; a zombie does, too, until its parent has taken notice."""
    return [pid for pid in pids(fine_tune) if psutil.pid_exists(pid)]


def result_of(fine_tune: FineTune) -> Result:
    result = fine_tune.result
    assert result
    return result


def adapters(root: Path) -> list[Path]:
    """Return all that is in the directory of the adapters, what is hidden, too."""
    directory = root / "adapters"
    return sorted(directory.iterdir()) if directory.is_dir() else []
