"""The kinds of long work: how many jobs of each a worker runs, and where their records are."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worker.batches.record import Batches
from worker.long_work.records import Records
from worker.settings import Settings
from worker.volume import Volume, translate_os_errors

if TYPE_CHECKING:
    from worker.fine_tunes.record import FineTunes


@dataclass(frozen=True, slots=True)
class WorkKind:
    """A kind of long work, whose records are in ``folder`` on the volume."""

    folder: str
    open_records: Callable[[Settings], Records[Any, Any]]
    places: int  # jobs of this kind that a worker runs concurrently; the others wait
    needs_training: bool = False  # a worker that trains, instead of one with an engine


def _open_fine_tunes(settings: Settings) -> "FineTunes":
    # Most workers never run a fine-tune.
    from worker.fine_tunes.record import FineTunes  # noqa: PLC0415 - see above

    return FineTunes(settings)


# Kinds by ``Record.kind``, which is also the key in the input of the jobs that run such work.
KINDS = {
    # One batch can fill the engine. Two more fill the slots that it leaves free while its input
    # is validated, its last lines run, its output is written, or another worker has its lease.
    "batch": WorkKind("batches", Batches, places=3),
    # A training uses all of the memory and of the processor that it can get.
    "fine_tune": WorkKind("fine_tunes", _open_fine_tunes, places=1, needs_training=True),
}


def existing_record_collections(
    settings: Settings, kinds: Iterable[WorkKind] = tuple(KINDS.values())
) -> Iterator[Records[Any, Any]]:
    """Yield the records of each kind with a directory on the volume. Call this in a thread."""
    volume = Volume.from_settings(settings)
    for kind in kinds:
        with translate_os_errors():
            exists = volume.worker_path(kind.folder).exists()
        if exists:
            yield kind.open_records(settings)


def input_file_ids_in_use(settings: Settings) -> set[str]:
    """Return the ids of the files that unfinished work reads. Reads files: call in a thread."""
    return set().union(
        *(records.input_file_ids_in_use() for records in existing_record_collections(settings))
    )
