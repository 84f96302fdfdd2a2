"""What was asked of a batch, as the volume keeps it, and what it writes beside its files."""

import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pydantic import Field

from worker.files import Files
from worker.job.batch import BatchRequest
from worker.volume import record


class Kept(BatchRequest, record.Kept):
    """A request as the volume keeps it.

    Args:
        output: the name of what it writes beside its files of results; None: nothing.
        extra: what else the dialect of the request needs.
        lasts_s: seconds until it expires, where these are no whole hours.
    """

    input_file_id: str
    output: str | None = None
    extra: dict[str, Any] = Field(default_factory=dict)
    lasts_s: int | None = None

    @property
    def expires_at(self) -> int:
        return self.created_at + (self.lasts_s or self.window_s)


def kept(request: BatchRequest, batch_id: str, input_file_id: str) -> Kept:
    """Return a request for a batch that begins now."""
    shared = {name: getattr(request, name) for name in BatchRequest.model_fields}
    created_at = int(time.time())
    return Kept(**shared, id=batch_id, input_file_id=input_file_id, created_at=created_at)


class Output(Protocol):
    """What a dialect writes of its batches beside the files of results. Its methods block."""

    def write(self, results: Callable[[], Iterable[bytes | None]]) -> None:
        """Write the output; it is written again, or by two at once, with the same results.

        Args:
            results: returns, for each line of the input in turn, its line of the output or of the
                error file; None: it has none.

        Raises:
            RequestError: somebody has changed the volume, so that it can't be written.
            VolumeError: the volume fails.
        """

    def release(self) -> None:
        """Give up what was reserved for the output, if it has not been written."""


MakeOutput = Callable[[Kept, Files], Output]
