"""Kinds of long work. The modules of a kind are imported when they are first needed."""

import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worker.settings import Settings
from worker.volume import Volume, translate_os_errors

if TYPE_CHECKING:
    from worker.long_work.records import Records


@dataclass(frozen=True, slots=True)
class WorkKind:
    """A kind of long work.

    Args:
        noun: Name of the kind in logs.
        folder: Directory of its records on the volume.
        records_class: Import path of the class for all of its records, "module:name".
        answer_function: Import path of the function that answers a job of this kind, "module:name".
        places: Number of jobs of this kind that a worker runs concurrently; the others wait.
        needs_training: Whether it needs a worker that trains, instead of one with an engine.
    """

    noun: str
    folder: str
    records_class: str
    answer_function: str
    places: int
    needs_training: bool = False

    def load_records(self, settings: Settings) -> "Records[Any, Any]":
        """Return all records of this kind."""
        records: Records[Any, Any] = _import_object(self.records_class)(settings)
        return records

    def load_answer_function(self) -> Callable[..., Any]:
        answer: Callable[..., Any] = _import_object(self.answer_function)
        return answer


# Kinds by the key in the input of the jobs that run such work.
KINDS = {
    "batch": WorkKind(
        "batch",
        "batches",
        "worker.batches.store:Batches",
        "worker.dialects.batch_jobs:make_answer",
        # One batch can fill the engine. Two more fill the slots that it leaves free while its input
        # is validated, its last lines run, its output is written, or another worker has its lease.
        places=3,
    ),
    "fine_tune": WorkKind(
        "fine-tune",
        "fine_tunes",
        "worker.fine_tunes.record:FineTunes",
        "worker.dialects.fine_tune_jobs:make_answer",
        # A training uses all of the memory and of the processor that it can get.
        places=1,
        needs_training=True,
    ),
}


def existing_record_collections(
    settings: Settings, kinds: Iterable[WorkKind] = tuple(KINDS.values())
) -> "Iterator[Records[Any, Any]]":
    """Yield the records of each kind with a directory on the volume. Call this in a thread.

    Raises:
        VolumeError: There is no volume, or it fails.
    """
    volume = Volume.from_settings(settings)
    for kind in kinds:
        with translate_os_errors():
            exists = volume.worker_path(kind.folder).exists()
        if exists:
            yield kind.load_records(settings)


def input_file_ids_in_use(settings: Settings) -> set[str]:
    """Return the ids of the files that unfinished work reads. Reads files: call in a thread."""
    return set().union(
        *(records.input_file_ids_in_use() for records in existing_record_collections(settings))
    )


@dataclass(frozen=True, slots=True)
class WorkReference:
    """A reference to long work on the volume, by its id.

    Args:
        kind: Key in ``KINDS``.
        id: Id of the work.
        passes: Number of times that workers on other volumes have passed the work's job on.
    """

    kind: str
    id: str
    passes: int = 0

    def __str__(self) -> str:
        return f"{KINDS[self.kind].noun} {self.id}"

    def job_input(self, **options: Any) -> dict[str, Any]:
        """Return the input of a job that continues the work, with the options of the job."""
        passes = {"passes": self.passes} if self.passes else {}
        return {self.kind: {"id": self.id, **passes, **options}}

    @property
    def run_with_field(self) -> dict[str, Any]:
        """Field of a response that contains the job which the caller has to send."""
        return {"run_with": {"input": self.job_input()}}


def _import_object(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
