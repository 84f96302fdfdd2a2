"""All fine-tunes of a volume: created, found, listed, removed long after their end."""

import contextlib
from pathlib import Path
from typing import ClassVar, Literal

from trainer.spec import Data
from worker.errors import InvalidInput, NoSuchObject
from worker.files import Files
from worker.fine_tunes.request import Kept, Source
from worker.fine_tunes.state import FineTune
from worker.settings import Settings
from worker.validation import of_field
from worker.volume import Volume
from worker.volume.record import Records

PREFIX = "ftjob-"
PURPOSE = "fine-tune"
# How rows are written, by the ending of a file's name.
FORMS: dict[str, Literal["csv", "jsonl"]] = {".csv": "csv", ".jsonl": "jsonl"}


class FineTunes(Records[FineTune, Kept]):
    """All fine-tunes of a volume. Its methods read and write files: call them in threads.

    Args:
        volume: where they are kept.
        files: the rows that they are trained on.
        retention_days: after which one that has ended is removed, but not its adapter; 0 keeps it.
    """

    prefix: ClassVar[str] = PREFIX
    folder: ClassVar[str] = "fine_tunes"
    param: ClassVar[str] = "fine_tuning_job_id"

    def __init__(self, volume: Volume, files: Files, retention_days: float) -> None:
        super().__init__(volume, retention_days)
        self.files = files

    @classmethod
    def of(cls, settings: Settings) -> "FineTunes":
        return cls(Volume.of(settings), Files.of(settings), settings.files_retention_days)

    def at(self, directory: Path) -> FineTune:
        return FineTune(directory)

    def check(self, asked: Kept) -> None:
        """Check the files that a fine-tune reads.

        Raises:
            InvalidInput: one is no file for fine-tunes.
            NoSuchObject: one is not there.
        """
        for name, source in (
            ("training_file", asked.training),
            ("validation_file", asked.validation),
        ):
            with of_field(name):
                file = self.files.get(source.file_id) if source else None
                if file and file.purpose != PURPOSE:
                    raise InvalidInput(
                        f"the file has the purpose {file.purpose!r}, not {PURPOSE!r}"
                    )

    def data(self, source: Source) -> Data:
        """Return where the rows of a fine-tune are.

        Raises:
            NoSuchObject: they are no longer there.
        """
        # While a fine-tune needs it, a file that has expired is not removed.
        file = self.files.get(source.file_id, expired=True)
        form = FORMS.get(Path(file.filename.lower()).suffix)
        return Data(path=self.files.content(file).absolute(), form=form)

    def inputs_in_use(self) -> set[str]:
        """Return the ids of the files that fine-tunes still read."""
        found = set()
        for fine_tune in self.unfinished():
            with contextlib.suppress(NoSuchObject):
                found |= {source.file_id for source in fine_tune.request.sources}
        return found
