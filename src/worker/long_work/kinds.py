"""The kinds of long work. Modules of a kind are imported when the first work of it is met."""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worker.settings import Settings
from worker.volume import Volume, failures

if TYPE_CHECKING:
    from worker.long_work.records import Records


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of long work.

    Args:
        noun: what the log calls it.
        folder: the directory on the volume that its records are in.
        records: the class of all of its records: "module:name".
        answer: the function that answers a job which runs it; likewise.
        trains: whether it needs a worker that trains; otherwise one whose engine answers.
    """

    noun: str
    folder: str
    records: str
    answer: str
    trains: bool = False

    def load_records(self, settings: Settings) -> "Records[Any, Any]":
        """Return all records of this kind."""
        records: Records[Any, Any] = _load(self.records)(settings)
        return records

    def load_answer(self) -> Callable[..., Any]:
        answer: Callable[..., Any] = _load(self.answer)
        return answer


# By the key of a job's input that runs such work.
KINDS = {
    "batch": Kind(
        "batch", "batches", "worker.batches.store:Batches", "worker.dialects.batch_jobs:answer"
    ),
    "fine_tune": Kind(
        "fine-tune",
        "fine_tunes",
        "worker.fine_tunes.record:FineTunes",
        "worker.dialects.fine_tune_jobs:answer",
        trains=True,
    ),
}


def stored(settings: Settings) -> "Iterator[Records[Any, Any]]":
    """Yield the records of each kind of which the volume has any. Reads the volume: for threads.

    Raises:
        VolumeError: there is no volume, or it fails.
    """
    volume = Volume.of(settings)
    for kind in KINDS.values():
        with failures():
            exists = volume.directory(kind.folder).exists()
        if exists:
            yield kind.load_records(settings)


def inputs_in_use(settings: Settings) -> set[str]:
    """Return the ids of the files that unfinished work of any kind reads; for threads."""
    return set().union(*(records.inputs_in_use() for records in stored(settings)))


@dataclass(frozen=True, slots=True)
class LongWork:
    """Some work on the volume, by the id that it has there."""

    kind: str
    id: str

    def __str__(self) -> str:
        return f"{KINDS[self.kind].noun} {self.id}"

    def input(self, **more: Any) -> dict[str, Any]:
        """Return the input of the job that goes on with it; ``max_runtime_sec`` may be given."""
        return {self.kind: {"id": self.id, **more}}

    @property
    def run_with(self) -> dict[str, Any]:
        """What a caller gets who has to send that job."""
        return {"run_with": {"input": self.input()}}


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
