"""The files that callers get of a fine-tune: a table of its metrics, a plot, and its adapter."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from trainer.spec import ATTEMPTS, RESULT
from worker.files import PREFIX, Files
from worker.fine_tunes import plot
from worker.fine_tunes.record import FineTune
from worker.volume import adapters, failures, ids

PURPOSE = "fine-tune-results"
TABLE, PLOT = "step_metrics.csv", "losses.svg"
# Columns of the table, in OpenAI's words; those that no step has are left out, but for the losses.
LOSSES = ("train_loss", "valid_loss")
COLUMNS = (
    *LOSSES,
    *("train_mean_token_accuracy", "valid_mean_token_accuracy"),
    *("epoch", "learning_rate", "grad_norm"),
)

Steps = Mapping[int, Mapping[str, float]]
# Bytes that are copied at once.
PART = 1 << 20


def write(files: Files, fine_tune: FineTune) -> list[str]:
    """Write the files, or find those that another worker has written; return their ids.

    Args:
        files: of the volume.
        fine_tune: whose training is over.

    Raises:
        VolumeError: they can't be written.
    """
    steps = fine_tune.metrics()
    title = f"{fine_tune.request.base}: loss of {fine_tune.id}"
    lines = {
        name: {step: row[name] for step, row in steps.items() if name in row} for name in LOSSES
    }
    contents: dict[str, Iterable[bytes]] = {
        TABLE: [table(steps).encode()],
        PLOT: [plot.svg(title, lines).encode()],
        **_adapter(fine_tune, files.max_bytes),
    }
    found = []
    for name, content in contents.items():
        id = ids.derived(PREFIX, fine_tune.id, name)
        if not files.has(id):
            with failures():
                files.receive(content, filename=name, purpose=PURPOSE, id=id)
        found.append(id)
    return found


def _adapter(fine_tune: FineTune, most: int) -> dict[str, Iterable[bytes]]:
    """Return the files of the adapter that is published, unless one has more than so many bytes."""
    if (decided := fine_tune.publishing) is None:
        return {}
    place = fine_tune.directory / ATTEMPTS / decided.attempt / RESULT
    paths = [place / name for name in adapters.FILES]
    with failures():
        if max(path.stat().st_size for path in paths) > most:
            return {}
    return {path.name: _parts(path) for path in paths}


def _parts(path: Path) -> Iterator[bytes]:
    with path.open("rb") as opened:
        yield from iter(partial(opened.read, PART), b"")


def table(steps: Steps) -> str:
    """Return the metrics of all steps as CSV; what a step does not have is empty."""
    there = {name for row in steps.values() for name in row}
    columns = [name for name in COLUMNS if name in there or name in LOSSES]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["step", *columns])
    for step, row in steps.items():
        writer.writerow([step, *(row.get(name, "") for name in columns)])
    return text.getvalue()
