"""Writes the result files of a fine-tune: a table of its metrics, and its adapter."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from worker.files import FILE_PREFIX, Files
from worker.fine_tunes.record import FineTune
from worker.volume import adapters, translate_os_errors

PURPOSE = "fine-tune-results"
TABLE = "step_metrics.csv"
# Columns of the table, with OpenAI's names. Those without values are left out, except the losses.
LOSSES = ("train_loss", "valid_loss")
COLUMNS = (
    *LOSSES,
    *("train_mean_token_accuracy", "valid_mean_token_accuracy"),
    *("epoch", "learning_rate", "grad_norm"),
)

MetricsByStep = Mapping[int, Mapping[str, float]]
# Bytes of each read when an adapter is copied.
CHUNK_BYTES = 1 << 20


def write_result_files(files: Files, fine_tune: FineTune, adapter: Path) -> list[str]:
    """Write the result files, or find those of another worker; return their ids."""
    contents: dict[str, Iterable[bytes]] = {
        TABLE: [metrics_csv(fine_tune.metrics_by_step()).encode()],
        **_adapter_contents(adapter, files.max_bytes),
    }
    file_ids = []
    for name, content in contents.items():
        id = files.volume.location.derive_id(FILE_PREFIX, fine_tune.id, name)
        if not files.exists(id):
            with translate_os_errors():
                files.receive(content, filename=name, purpose=PURPOSE, id=id)
        file_ids.append(id)
    return file_ids


def _adapter_contents(directory: Path, max_bytes: int) -> dict[str, Iterable[bytes]]:
    """Return contents of the adapter's files by name; empty if one has more than ``max_bytes``."""
    paths = [directory / name for name in adapters.FILES]
    with translate_os_errors():
        if max(path.stat().st_size for path in paths) > max_bytes:
            return {}
    return {path.name: _read_chunks(path) for path in paths}


def _read_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from iter(partial(file.read, CHUNK_BYTES), b"")


def metrics_csv(metrics: MetricsByStep) -> str:
    """Return the metrics of all steps as CSV; missing values are empty."""
    recorded = {name for row in metrics.values() for name in row}
    columns = [name for name in COLUMNS if name in recorded or name in LOSSES]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["step", *columns])
    for step, row in metrics.items():
        writer.writerow([step, *(row.get(name, "") for name in columns)])
    return text.getvalue()
