"""Puts adapters where every worker serves them by their names: each is there as a whole, or not."""

import re
import shutil
import time
from pathlib import Path

from worker.errors import VolumeError
from worker.fine_tunes.request import Kept
from worker.volume import adapters, failures, write_once
from worker.volume.adapters import MADE, Made, maker
from worker.volume.directories import appear

# Characters of a name, so that it is one with a number, too, and so are those of checkpoints.
LONGEST = 108
_OTHERS = re.compile(r"[^A-Za-z0-9._-]+")


def name_of(request: Kept) -> str:
    """Return the name of the adapter that a fine-tune makes, if no other has it."""
    made_at = time.strftime("%y%m%d-%H%M%S", time.gmtime(request.created_at))
    model = _OTHERS.sub("-", request.base.rstrip("/").rpartition("/")[-1]).lstrip("._-") or "model"
    suffix = _OTHERS.sub("-", request.suffix or "")
    end = f".{suffix}.{made_at}" if suffix else f".{made_at}"
    return f"{model[: LONGEST - len(end)]}{end}"


def checkpoint_name(name: str, step: int) -> str:
    """Return the name of the adapter of an epoch."""
    return f"{name}.ckpt-{step}"


def reserve(root: Path, name: str, id: str) -> str:
    """Return a name that no other adapter has, nor is going to have: with a number, if need be.

    Args:
        root: the directory of all adapters.
        name: the one that is wanted.
        id: of the fine-tune.

    Raises:
        VolumeError: the volume can't be written to.
    """
    number, free = 1, name
    while not _reserved(root, free, id):
        number += 1
        free = f"{name}-{number}"
    return free


def _reserved(root: Path, name: str, id: str) -> bool:
    mark = _mark(root, name)
    with failures():
        ours = write_once(mark, id.encode()) or mark.read_bytes() == id.encode()
        if not ours:
            return False
        # After the mark: whoever had it before may have published, and then removed it.
        taken = (root / name).exists() and maker(root, name) != id
        if taken:
            mark.unlink()
        return not taken


def publish(root: Path, name: str, source: Path, base: str, id: str) -> None:
    """Make an adapter appear under its name; one that is there already stays.

    Args:
        root: the directory of all adapters.
        name: reserved for it.
        source: the directory with its files.
        base: the name of the model that it is for.
        id: of the fine-tune.

    Raises:
        VolumeError: the volume can't be written to; then nothing has appeared.
    """
    if maker(root, name) == id:
        return
    with failures():
        for left in root.glob(f".{name}.*"):
            shutil.rmtree(left, ignore_errors=True)
        with appear(root / name) as hidden:
            # The trainer knows the model by the directory that it lies in on this machine.
            adapters.copy(source, hidden, base)
            (hidden / MADE).write_text(Made(id=id).model_dump_json())
    # Another worker that went on with this fine-tune may have been faster, but nobody else.
    if maker(root, name) != id:
        raise VolumeError("the volume has another adapter in the place of this one")


def release(root: Path, name: str) -> None:
    """Remove the mark of a name whose adapter has been published."""
    with failures():
        _mark(root, name).unlink(missing_ok=True)


def _mark(root: Path, name: str) -> Path:
    return root / f".{name}"
