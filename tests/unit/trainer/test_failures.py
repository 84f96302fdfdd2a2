"""A volume that fails is told from a training that does, whoever has noticed it."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from worker.errors import VolumeError
from worker.trainer.failures import volume_failure

# Each write to it finds no space left.


def failed(fail: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - each has its own
        fail()
    return raised.value


def in_the_background() -> None:
    try:
        FULL.write_bytes(b"x")
    except OSError:
        raise RuntimeError("something else") from None


# Each write to it finds no space left.
FULL = Path("/dev/full")


@pytest.mark.parametrize(
    ("error", "is_volumes"),
    [
        (failed(lambda: FULL.write_bytes(b"x")), True),
        (failed(lambda: torch.save({"a": torch.zeros(1000)}, FULL)), True),
        (failed(in_the_background), True),
        # safetensors keeps no number.
        (RuntimeError("Error while serializing: I/O error: No space (os error 28)"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (VolumeError("the volume is full"), True),
        (RuntimeError("mat1 and mat2"), False),
        (FileNotFoundError(errno.ENOENT, "No such file"), False),
        (KeyError("a"), False),
    ],
    ids=str,
)
def test_a_volume_that_fails_is_seen_in_every_error(error: Exception, is_volumes: bool) -> None:
    reason = volume_failure(error)
    assert (reason is not None) is is_volumes
    assert reason is None or ("volume" in reason and "\n" not in reason)
