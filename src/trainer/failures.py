"""Tells the ways apart in which a training fails."""

import errno
import re
from collections.abc import Iterator

from worker.errors import VolumeError

# Of the volume, not of the training: it may go on later.
_VOLUME = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE}
# How safetensors and torch say it, who keep no number of the system's: "(os error 28)".
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_TORCH_WRITES = re.compile(r"PytorchStreamWriter failed|unexpected pos \d+ vs")


class Failure(Exception):
    """There will be no adapter, however often it is tried; the message says what to change."""


class Stopped(Exception):
    """Asked by SIGTERM; what another attempt goes on from is on the volume."""


def volume_failure(error: BaseException) -> str | None:
    """Return what the volume has failed in, in one line; None if the error is another."""
    for cause in _causes(error):
        if isinstance(cause, VolumeError):
            return str(cause)
        if isinstance(cause, OSError) and cause.errno in _VOLUME:
            return f"the volume fails: {cause.strerror}"
        text = str(cause)
        if (match := _OS_ERROR.search(text)) and int(match[1]) in _VOLUME:
            return f"the volume fails: {text.splitlines()[0]}"
        if _TORCH_WRITES.search(text):
            return "the volume fails: a checkpoint can't be written, it may be full"
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
