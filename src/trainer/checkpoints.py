"""Files and directories of an attempt that appear whole: its results, checkpoints and adapters.

They are written under a hidden name, made durable, and renamed.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from trainer.spec import CHECKPOINTS, EPOCHS, step_of

# The files of an adapter, as PEFT names them.
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Of an attempt.
MOST_CHECKPOINTS = 2


@dataclass(frozen=True)
class Checkpoint:
    """What transformers' Trainer resumes from; ``step``: the steps done."""

    path: Path
    step: int


def adopt(attempts: Path, mine: Path) -> Checkpoint | None:
    """Copy the newest checkpoint of all attempts into this one, unless it is there.

    An attempt whose worker counts as dead may live, and remove its older checkpoints.

    Args:
        attempts: the directory of all attempts.
        mine: the directory of this one.

    Raises:
        OSError: the volume can't be read or written to.
    """
    gone: set[Path] = set()
    while found := [
        checkpoint
        for attempt in attempts.iterdir()
        for checkpoint in _of(attempt)
        if checkpoint.path not in gone
    ]:
        last = max(found, key=lambda each: (each.step, each.path.is_relative_to(mine)))
        if last.path.is_relative_to(mine):
            return last
        place = mine / CHECKPOINTS / last.path.name
        try:
            copy(last.path, place)
        except FileNotFoundError:
            gone.add(last.path)
        else:
            return Checkpoint(place, last.step)
    return None


def newest(attempt: Path) -> Checkpoint | None:
    """Return the newest checkpoint of an attempt; None if it has none."""
    return max(_of(attempt), key=lambda each: each.step, default=None)


def prune(attempt: Path) -> None:
    """Remove an attempt's checkpoints but the newest."""
    for checkpoint in sorted(_of(attempt), key=lambda each: each.step)[:-MOST_CHECKPOINTS]:
        # Renamed first, so that nobody resumes from a part of it.
        hidden = _hidden(checkpoint.path)
        checkpoint.path.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def epoch_adapter(attempts: Path, mine: Path, step: int) -> Path:
    """Return where the adapter of an epoch is: in this attempt, or in one that it goes on from.

    Raises:
        FileNotFoundError: no attempt has it.
    """
    for attempt in (mine, *sorted(attempts.iterdir(), reverse=True)):
        place = attempt / EPOCHS / str(step)
        if place.is_dir():
            return place
    raise FileNotFoundError(f"no attempt has an adapter of step {step}")


def copy(source: Path, place: Path) -> None:
    """Copy a directory of files; ``place`` appears when it is whole and durable.

    Raises:
        OSError: it can't be; then nothing is left.
    """
    with _appearing(place) as hidden:
        # Not copytree: its errors have lost their numbers.
        for file in source.iterdir():
            shutil.copyfile(file, hidden / file.name)


def copy_adapter(checkpoint: Path, place: Path, base: str) -> None:
    """Copy the two files of a checkpoint's adapter; ``place`` appears when it is whole.

    Args:
        checkpoint: holds both.
        place: of the copy.
        base: the name of the base model, that the adapter's configuration shall give.

    Raises:
        OSError: it can't be; then nothing is left.
    """
    with _appearing(place) as hidden:
        shutil.copyfile(checkpoint / WEIGHTS, hidden / WEIGHTS)
        config = json.loads((checkpoint / CONFIG).read_bytes())
        config["base_model_name_or_path"] = base
        (hidden / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True))


def publish(hidden: Path, place: Path) -> None:
    """Make a directory of files durable, and give it its name; one that has it already stays.

    Raises:
        OSError: it can't be.
    """
    for path in (*hidden.iterdir(), hidden):
        _sync(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir():
        shutil.rmtree(hidden)
    else:
        hidden.rename(place)
    _sync(place.parent)
    _sync(place.parent.parent)


def write(path: Path, content: str) -> None:
    """Write a file, which appears when it is whole and durable.

    Raises:
        OSError: it can't be written; then nothing is left.
    """
    hidden = _hidden(path)
    try:
        hidden.write_text(content)
        _sync(hidden)
        hidden.rename(path)
    finally:
        hidden.unlink(missing_ok=True)
    _sync(path.parent)


@contextmanager
def _appearing(place: Path) -> Iterator[Path]:
    """Make a directory to write to, which gets its name once the block has left it whole."""
    hidden = _hidden(place)
    try:
        hidden.mkdir(parents=True)
        yield hidden
        publish(hidden, place)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _of(attempt: Path) -> Iterator[Checkpoint]:
    directory = attempt / CHECKPOINTS
    for path in directory.iterdir() if directory.is_dir() else ():
        if (step := step_of(path.name)) is not None:
            yield Checkpoint(path, step)


def _hidden(place: Path) -> Path:
    return place.with_name(f".{place.name}.{uuid4().hex}")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
