"""Publishes the adapters of a training, which every worker then serves, and the result files."""

import asyncio
import csv
import io
import re
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from worker.errors import VolumeError, WorkerError
from worker.files import FILE_PREFIX, Files
from worker.fine_tunes.record import (
    AdapterChoice,
    EpochCheckpoint,
    FineTune,
    FineTuneFailed,
    FineTuneResult,
    StoredFineTune,
)
from worker.fine_tunes.spec import ATTEMPTS_DIR, Outcome
from worker.volume import adapters, ids, translate_os_errors
from worker.volume.adapters import ORIGIN_FILE, AdapterOrigin, origin_fine_tune_id
from worker.volume.durable import atomic_directory, write_once

# Maximum length of a name, so that it is also valid with the suffixes of numbers and checkpoints.
MAX_NAME_LENGTH = 108
_INVALID = re.compile(r"[^A-Za-z0-9._-]+")

PURPOSE = "fine-tune-results"
TABLE = "step_metrics.csv"
# Columns of the table, with OpenAI's names. Those without values are left out, except the losses.
LOSSES = ("train_loss", "valid_loss")
COLUMNS = (
    *LOSSES,
    *("train_mean_token_accuracy", "valid_mean_token_accuracy"),
    *("epoch", "learning_rate", "grad_norm"),
)

# Bytes of each read when an adapter is copied.
CHUNK_BYTES = 1 << 20


async def publish_result(
    fine_tune: FineTune,
    attempt: Path,
    root: Path,
    files: Files,
    check_adapter: Callable[[Path], Awaitable[None]],
) -> FineTuneResult:
    """Publish the adapters of an attempt, and return how the fine-tune ends.

    This may be interrupted at any point, and continues when it is called again. The worker must
    have the fine-tune's lease, and the attempt must have finished the training. ``root`` is
    the directory of all adapters; ``check_adapter`` raises a ``WorkerError`` for an adapter that
    can't be served.

    Raises:
        FineTuneFailed: The training has no adapter that can be served.
    """
    outcome = await asyncio.to_thread(fine_tune.read_outcome, attempt)
    directories = await asyncio.to_thread(fine_tune.epoch_adapter_directories, attempt)
    if outcome is None or outcome.error or outcome.best_step not in directories:
        message = (outcome and outcome.error) or "The training has produced no adapter."
        if outcome and outcome.check.mistakes:
            field = outcome.check.mistakes[0].file
            raise FineTuneFailed(f"invalid_{field}", message, field)
        raise FineTuneFailed("training_failed", message)
    try:
        await check_adapter(directories[outcome.best_step])
    except VolumeError:
        raise
    except WorkerError as error:
        message = f"The adapter can't be served: {error.message}"
        raise FineTuneFailed("training_failed", message) from error
    return await asyncio.to_thread(_publish, fine_tune, attempt.name, outcome, root, files)


def _publish(
    fine_tune: FineTune, attempt: str, outcome: Outcome, root: Path, files: Files
) -> FineTuneResult:
    request = fine_tune.request
    choice = fine_tune.adapter_choice
    if choice is None:
        name = reserve_adapter_name(root, preferred_adapter_name(request), fine_tune.id)
        choice = fine_tune.decide_publishing(AdapterChoice(name=name, attempt=attempt))
        if choice is None:
            # The fine-tune was cancelled while the adapter was checked.
            release_adapter_name(root, name)
            return FineTuneResult(status="cancelled")
    sources = fine_tune.epoch_adapter_directories(
        fine_tune.directory / ATTEMPTS_DIR / choice.attempt
    )
    checkpoints = []
    for step, source in sources.items():
        name = choice.name
        # The adapter of the best epoch is the result, which is published last.
        if step != outcome.best_step:
            name = checkpoint_adapter_name(name, step)
            publish_adapter(root, name, source, request.base, fine_tune.id)
        checkpoints.append(EpochCheckpoint(step=step, name=name))
    best = sources[outcome.best_step]
    publish_adapter(root, choice.name, best, request.base, fine_tune.id)
    # The name is released before the end, because no worker continues a fine-tune that has ended.
    release_adapter_name(root, choice.name)
    return FineTuneResult(
        status="succeeded",
        adapter=choice.name,
        checkpoints=tuple(checkpoints),
        result_file_ids=tuple(write_result_files(files, fine_tune, best)),
        trained_tokens=outcome.trained_tokens,
        steps=outcome.steps,
    )


def preferred_adapter_name(request: StoredFineTune) -> str:
    """Return the preferred name of the adapter of a fine-tune.

    If the fine-tune's id carries the id of its volume, the name does so, too.
    """
    created_at = time.strftime("%y%m%d-%H%M%S", time.gmtime(request.created_at))
    model = _INVALID.sub("-", request.base.rstrip("/").rpartition("/")[-1]).lstrip("._-") or "model"
    suffix = _INVALID.sub("-", request.suffix or "")
    ending = f".{suffix}.{created_at}" if suffix else f".{created_at}"
    ending = ids.add_volume_id(ending, ids.split_volume_id(request.id)[1])
    return f"{model[: MAX_NAME_LENGTH - len(ending)]}{ending}"


def checkpoint_adapter_name(name: str, step: int) -> str:
    return _insert_before_volume_id(name, f".ckpt-{step}")


def reserve_adapter_name(root: Path, name: str, id: str) -> str:
    """Reserve and return a name that no other adapter has; add a number if necessary."""
    number, candidate = 1, name
    with translate_os_errors():
        while True:
            mark = _reservation_path(root, candidate)
            if write_once(mark, id.encode()) or mark.read_bytes() == id.encode():
                # Checked after creating the mark: another fine-tune may have just published an
                # adapter with this name, and then removed its mark.
                if not (root / candidate).exists() or origin_fine_tune_id(root, candidate) == id:
                    return candidate
                mark.unlink()
            number += 1
            candidate = _insert_before_volume_id(name, f"-{number}")


def _insert_before_volume_id(name: str, text: str) -> str:
    stem, volume_id = ids.split_volume_id(name)
    return ids.add_volume_id(f"{stem}{text}", volume_id)


def publish_adapter(root: Path, name: str, source: Path, base_model: str, id: str) -> None:
    """Make an adapter appear under its name, unless an error is raised.

    The name is reserved, and ``root`` is the directory of all adapters. An existing adapter of the
    fine-tune stays.
    """
    if origin_fine_tune_id(root, name) == id:
        return
    with translate_os_errors():
        for leftover in root.glob(f".{name}.*"):
            shutil.rmtree(leftover, ignore_errors=True)
        with atomic_directory(root / name) as hidden:
            # The trainer's configuration names the model by its directory on this machine.
            adapters.copy_adapter(source, hidden, base_model)
            (hidden / ORIGIN_FILE).write_text(AdapterOrigin(id=id).model_dump_json())
    # Only another worker that continues this fine-tune may have been faster.
    if origin_fine_tune_id(root, name) != id:
        raise VolumeError("the volume has another adapter in the place of this one")


def release_adapter_name(root: Path, name: str) -> None:
    with translate_os_errors():
        _reservation_path(root, name).unlink(missing_ok=True)


def _reservation_path(root: Path, name: str) -> Path:
    return root / f".{name}"


def write_result_files(files: Files, fine_tune: FineTune, adapter: Path) -> list[str]:
    """Write the result files, or find those of another worker; return their ids.

    They are a table of the metrics, and the files of the adapter, unless one is too large.

    Args:
        files: Files of the volume.
        fine_tune: Fine-tune whose training is finished.
        adapter: Directory of its adapter.

    Raises:
        VolumeError: The files can't be written.
    """
    contents: dict[str, Iterable[bytes]] = {
        TABLE: [metrics_csv(fine_tune.metrics_by_step()).encode()]
    }
    paths = [adapter / name for name in adapters.FILES]
    with translate_os_errors():
        if max(path.stat().st_size for path in paths) <= files.max_bytes:
            contents |= {path.name: _read_chunks(path) for path in paths}
    file_ids = []
    for name, content in contents.items():
        id = files.volume.location.derive_id(FILE_PREFIX, fine_tune.id, name)
        if not files.exists(id):
            with translate_os_errors():
                files.receive(content, filename=name, purpose=PURPOSE, id=id)
        file_ids.append(id)
    return file_ids


def _read_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from iter(partial(file.read, CHUNK_BYTES), b"")


def metrics_csv(metrics: Mapping[int, Mapping[str, float]]) -> str:
    """Return the metrics of all steps as CSV; missing values are empty."""
    recorded = {name for row in metrics.values() for name in row}
    columns = [name for name in COLUMNS if name in recorded or name in LOSSES]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["step", *columns])
    for step, row in metrics.items():
        writer.writerow([step, *(row.get(name, "") for name in columns)])
    return text.getvalue()
