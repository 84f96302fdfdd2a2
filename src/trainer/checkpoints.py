"""Copies, finds and removes an attempt's checkpoints and adapters."""

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from worker.fine_tunes.spec import CHECKPOINTS_DIR, EPOCHS_DIR, parse_checkpoint_step
from worker.volume.durable import atomic_directory, remove_directory

# File names of an adapter, as PEFT writes them.
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Number of checkpoints that are retained per attempt.
MAX_CHECKPOINTS = 2


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of transformers' Trainer; ``step`` is its number of completed steps."""

    path: Path
    step: int


def copy_newest_checkpoint(attempts: Path, attempt: Path) -> Checkpoint | None:
    """Copy the newest checkpoint of all attempts into this attempt, unless it is already there.

    If the checkpoint disappears during the copy, the next newest is copied. This happens if another
    attempt still runs, although its worker counts as dead, and removes its older checkpoints.

    Returns:
        The checkpoint in this attempt; None if no attempt has a checkpoint.

    Raises:
        OSError: The volume can't be read or written to.
    """
    removed: set[Path] = set()
    while candidates := [
        checkpoint
        for directory in attempts.iterdir()
        for checkpoint in _list_checkpoints(directory)
        if checkpoint.path not in removed
    ]:
        newest = max(candidates, key=lambda each: (each.step, each.path.is_relative_to(attempt)))
        if newest.path.is_relative_to(attempt):
            return newest
        destination = attempt / CHECKPOINTS_DIR / newest.path.name
        try:
            copy_directory_atomically(newest.path, destination)
        except FileNotFoundError:
            removed.add(newest.path)
        else:
            return Checkpoint(destination, newest.step)
    return None


def find_newest_checkpoint(attempt: Path) -> Checkpoint | None:
    """Return the newest checkpoint of an attempt; None if it has no checkpoint."""
    return max(_list_checkpoints(attempt), key=lambda each: each.step, default=None)


def prune_checkpoints(attempt: Path) -> None:
    """Remove all but the ``MAX_CHECKPOINTS`` newest checkpoints of an attempt."""
    for old in sorted(_list_checkpoints(attempt), key=lambda each: each.step)[:-MAX_CHECKPOINTS]:
        # One that can't be removed does no harm: no attempt resumes from a part of it.
        with suppress(OSError):
            remove_directory(old.path)


def find_epoch_adapter(attempts: Path, attempt: Path, step: int) -> Path:
    """Return the directory with an epoch's adapter, from this attempt or another one.

    Raises:
        FileNotFoundError: No attempt has this adapter.
    """
    for directory in (attempt, *sorted(attempts.iterdir(), reverse=True)):
        adapter = directory / EPOCHS_DIR / str(step)
        if adapter.is_dir():
            return adapter
    raise FileNotFoundError(f"no attempt has an adapter of step {step}")


def copy_directory_atomically(source: Path, destination: Path) -> None:
    """Copy a directory of files atomically and durably; an existing destination stays as it is.

    Raises:
        OSError: The copy failed; no part of it is left.
    """
    with atomic_directory(destination) as hidden_path:
        # shutil.copytree is not used: its errors lose their errno.
        for file in source.iterdir():
            shutil.copyfile(file, hidden_path / file.name)


def copy_adapter(checkpoint: Path, destination: Path, base_name: str) -> None:
    """Copy a checkpoint's adapter atomically and durably; an existing copy stays as it is.

    The base model's name is written into the configuration of the copy.

    Raises:
        OSError: The copy failed; no part of it is left.
    """
    with atomic_directory(destination) as hidden_path:
        shutil.copyfile(checkpoint / ADAPTER_WEIGHTS, hidden_path / ADAPTER_WEIGHTS)
        config = json.loads((checkpoint / ADAPTER_CONFIG).read_bytes())
        config["base_model_name_or_path"] = base_name
        (hidden_path / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True))


def _list_checkpoints(attempt: Path) -> Iterator[Checkpoint]:
    directory = attempt / CHECKPOINTS_DIR
    for path in directory.iterdir() if directory.is_dir() else ():
        if (step := parse_checkpoint_step(path.name)) is not None:
            yield Checkpoint(path, step)
