"""All batches of a volume: created, found, listed, removed long after their end."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from worker.batches.lines import Limits
from worker.batches.request import Kept, MakeOutput, Output
from worker.batches.state import Batch
from worker.errors import InvalidInput, NoSuchObject
from worker.files import Files
from worker.settings import Settings
from worker.validation import of_field
from worker.volume import Volume
from worker.volume.record import Records

PREFIX = "batch_"


class Batches(Records[Batch, Kept]):
    """All batches of a volume. Its methods read and write files: call them in threads.

    Args:
        volume: where they are kept.
        files: their inputs and outputs.
        limits: of an input.
        retention_days: after which a batch that has expired is removed; 0 keeps it.
        outputs: what batches can write beside their files of results, by the names in requests.
    """

    prefix: ClassVar[str] = PREFIX
    folder: ClassVar[str] = "batches"
    param: ClassVar[str] = "batch_id"

    def __init__(
        self,
        volume: Volume,
        files: Files,
        limits: Limits,
        retention_days: float,
        outputs: Mapping[str, MakeOutput],
    ) -> None:
        super().__init__(volume, retention_days)
        self.files = files
        self.limits = limits
        self._outputs = outputs

    @classmethod
    def of(
        cls, settings: Settings, outputs: Mapping[str, MakeOutput] = MappingProxyType({})
    ) -> "Batches":
        longest = round(settings.max_input_mb * 1_000_000)
        limits = Limits(settings.batch_max_requests, longest, settings.max_input_values)
        files = Files.of(settings)
        return cls(Volume.of(settings), files, limits, settings.files_retention_days, outputs)

    def at(self, directory: Path) -> Batch:
        return Batch(directory)

    def check(self, asked: Kept) -> None:
        """Check what a batch reads.

        Raises:
            InvalidInput: the input is no file for batches.
            NoSuchObject: there is no such file.
        """
        with of_field("input_file_id"):
            file = self.files.get(asked.input_file_id)
            if file.purpose != "batch":
                raise InvalidInput(f"the file has the purpose {file.purpose!r}, not 'batch'")

    def output_of(self, asked: Kept) -> Output | None:
        """Return what a batch writes beside its files of results; None: nothing."""
        return None if asked.output is None else self._outputs[asked.output](asked, self.files)

    def inputs_in_use(self) -> set[str]:
        """Return the ids of the files that batches still read."""
        found = set()
        for batch in self.unfinished():
            with contextlib.suppress(NoSuchObject):
                found.add(batch.request.input_file_id)
        return found
