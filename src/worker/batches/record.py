"""One batch on the volume: what was asked, how far it is, how it ended; its files are its state."""

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from worker.batches.lines import Plan
from worker.batches.parts import Finished, finished, sizes
from worker.errors import Conflict
from worker.job.batch import BatchRequest
from worker.long_work.record import DECISION, REQUEST, RESULT, Moment, Record, StoredRequest
from worker.volume import failures, ids, write_once

# Files in a batch's directory, beside those of all long work.
PLAN, CANCEL = "plan.json", "cancel.json"
PARTS, DONE = "parts", "done"

# A batch fails before its first line, or when its input is no more the one that was checked.
End = Literal["completed", "expired", "cancelled", "failed"]
Status = Literal["validating", "in_progress", "finalizing", "cancelling"] | End


class StoredBatch(BatchRequest, StoredRequest):
    """A request as the volume has it.

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

    @property
    def inputs(self) -> Mapping[str, str]:
        return {"input_file_id": self.input_file_id}

    @classmethod
    def of(cls, request: BatchRequest, batch_id: str, input_file_id: str) -> "StoredBatch":
        """Return a request for a batch that begins now."""
        shared = {name: getattr(request, name) for name in BatchRequest.model_fields}
        return cls(**shared, id=batch_id, input_file_id=input_file_id)


class BatchEnding(Moment):
    """How a batch is to end, decided once: whoever carries it out writes the same files.

    Args:
        output_file_id: of the output, if there is one; ``error_file_id``: likewise.
        cut: the lines that count: see ``parts.finished``.
    """

    status: End
    output_file_id: str
    error_file_id: str
    cut: dict[str, int]


class BatchResult(Moment):
    """How a batch ended; a file that would be empty is None.

    Args:
        mistakes: why it failed: OpenAI's ``errors``.
    """

    status: End = "completed"
    mistakes: list[dict[str, Any]] = Field(default_factory=list)
    output_file_id: str | None = None
    error_file_id: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A batch at one moment. Times are seconds since 1970, or None for what has not happened.

    Args:
        request: what was asked.
        status: how far it is, or how it ended.
        counts: what is durable; its files, once it has ended.
        planned_at: when its input had been checked.
        cancelled_at: when somebody cancelled it.
        ending_at: when its end was decided.
        ended_at: when it had ended.
        mistakes: why it failed.
    """

    request: StoredBatch
    status: Status
    counts: BatchResult
    planned_at: int | None
    cancelled_at: int | None
    ending_at: int | None
    ended_at: int | None
    mistakes: list[dict[str, Any]]


class Batch(Record):
    """One batch's directory. Its methods read and write files: call them in threads."""

    kind: ClassVar[str] = "batch"
    noun: ClassVar[str] = "batch"

    @property
    def request(self) -> StoredBatch:
        return self.require(REQUEST, StoredBatch)

    @property
    def over_at(self) -> int:
        return self.request.expires_at

    @property
    def plan(self) -> Plan | None:
        return self.read(PLAN, Plan)

    @property
    def result(self) -> BatchResult | None:
        return self.read(RESULT, BatchResult)

    @property
    def ending(self) -> BatchEnding | None:
        return self.read(DECISION, BatchEnding)

    @property
    def parts(self) -> Path:
        return self.directory / PARTS

    def stopping(self) -> End | None:
        """Return how the batch ends, if no further line is to be answered."""
        if ending := self.ending:
            return ending.status
        if self.has(CANCEL):
            return "cancelled"
        return "expired" if time.time() >= self.request.expires_at else None

    def finish_shard(self, index: int) -> None:
        with failures():
            write_once(self.directory / DONE / str(index), b"")

    def complete(self, plan: Plan) -> bool:
        """Return whether all lines have answers; a shard that lost some is to be done again."""
        with failures():
            found = finished(self.parts, texts=True)
            firsts = [shard.first for shard in plan.shards]
            there = Counter(bisect_right(firsts, number) - 1 for number in found)
            for index, shard in enumerate(plan.shards):
                if there[index] < shard.count:
                    (self.directory / DONE / str(index)).unlink(missing_ok=True)
        return len(found) >= plan.total

    def shards_left(self, plan: Plan) -> list[int]:
        """Return which shards have lines without an answer."""
        return [index for index in range(len(plan.shards)) if not self.has(f"{DONE}/{index}")]

    def decide(self, status: End) -> BatchEnding:
        """Decide how the batch ends, or return what has been decided."""
        with failures():
            cut = sizes(self.parts)
        output, errors = (ids.new("file-") for _ in range(2))
        ending = BatchEnding(status=status, output_file_id=output, error_file_id=errors, cut=cut)
        return self.settle_on(DECISION, ending)

    def cancel(self) -> None:
        """Ask whoever runs it to stop.

        Raises:
            Conflict: it has ended.
        """
        request = self.request
        if self.ended():
            status = self.snapshot().status
            raise Conflict(f"The batch {request.id!r} is {status}, and can't be cancelled.")
        self.write(CANCEL, Moment())

    def counts(self) -> BatchResult:
        """Count what is durable, and what the batch has to do."""
        if (found := self.result) is not None:
            return found
        plan, ending = self.plan, self.ending
        with failures():
            cut = ending.cut if ending else None
            lines = finished(self.parts, cut).values() if plan else []
        if ending is None and self.has(DECISION):
            # Lines that came after the decision may have been counted.
            return self.counts()
        return counted(lines, plan.total if plan else 0)

    def snapshot(self) -> Snapshot:
        """Return how far it is.

        Raises:
            NoSuchObject: there is none, or it has just been removed.
        """
        plan, cancel, ending = self.plan, self.read(CANCEL, Moment), self.ending
        result = self.result
        return Snapshot(
            status=_status(plan, cancel, ending, result),
            counts=result or self.counts(),
            planned_at=plan.made_at if plan else None,
            cancelled_at=cancel.at if cancel else None,
            ending_at=ending.at if ending else None,
            ended_at=result.at if result else None,
            mistakes=result.mistakes if result else [],
            # Last: it tells whether the batch was removed meanwhile.
            request=self.request,
        )


def _status(
    plan: Plan | None, cancel: Moment | None, ending: BatchEnding | None, result: BatchResult | None
) -> Status:
    if result:
        return result.status
    if ending:
        return "cancelling" if ending.status == "cancelled" else "finalizing"
    if cancel:
        return "cancelling"
    return "in_progress" if plan else "validating"


def counted(lines: Iterable[Finished], total: int) -> BatchResult:
    """Return a result that has only the counts of finished lines."""
    result = BatchResult(total=total)
    for line in lines:
        result.failed += line.failed
        result.completed += not line.failed
        result.prompt_tokens += line.prompt_tokens
        result.output_tokens += line.output_tokens
    return result
