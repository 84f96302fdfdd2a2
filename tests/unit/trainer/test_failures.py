"""A volume that fails is told from a training that does, whoever has noticed it."""

import errno
from pathlib import Path

import pytest
import torch

from worker.errors import VolumeError
from worker.trainer.failures import volume_failure

# Each write to it finds no space left.
FULL = Path("/dev/full")


def of_the_system() -> None:
    with FULL.open("wb") as full:
        full.write(b"x")


def of_safetensors() -> None:
    # It writes into a file of its own and renames it.
    raise OSError(errno.EDQUOT, "Disk quota exceeded") from ValueError("x")


def of_torch() -> None:
    torch.save({"a": torch.zeros(1000)}, FULL)


def in_the_background() -> None:
    try:
        of_the_system()
    except OSError:
        raise RuntimeError("something else") from None


def of_ours() -> None:
    raise VolumeError("the volume is full")


@pytest.mark.parametrize(
    "fail", [of_the_system, of_safetensors, of_torch, in_the_background, of_ours]
)
def test_a_full_volume_is_seen_in_every_error(fail: object) -> None:
    assert callable(fail)
    with pytest.raises(Exception) as raised:  # noqa: PT011 - each has its own
        fail()
    reason = volume_failure(raised.value)
    assert reason
    assert "volume" in reason
    assert "\n" not in reason


@pytest.mark.parametrize(
    "error",
    [RuntimeError("mat1 and mat2"), FileNotFoundError(errno.ENOENT, "No such file"), KeyError("a")],
)
def test_other_errors_are_not_the_volumes(error: Exception) -> None:
    assert volume_failure(error) is None
