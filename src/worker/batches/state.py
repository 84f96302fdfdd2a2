"""One batch on the volume: what was asked, how far it is, how it ended; its files are its state."""

import time
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from worker.batches.endings import (
    INPUT_CHANGED,
    End,
    Ending,
    Failed,
    Result,
    counted,
)
from worker.batches.lines import Plan
from worker.batches.parts import finished, sizes
from worker.batches.request import Kept
from worker.errors import Conflict, NoSuchObject
from worker.job.long_work import LongWork
from worker.volume import failures, ids, write_once
from worker.volume.record import Moment, Record

# Files in a batch's directory, beside its request.
PLAN, FAILED = "plan.json", "failed.json"
CANCEL, FINALIZING, RESULT = "cancel.json", "finalizing.json", "result.json"
PARTS, DONE = "parts", "done"


Status = Literal["validating", "in_progress", "finalizing", "cancelling"] | End


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

    request: Kept
    status: Status
    counts: Result
    planned_at: int | None
    cancelled_at: int | None
    ending_at: int | None
    ended_at: int | None
    mistakes: list[dict[str, Any]]


class Batch(Record):
    """One batch's directory. Its methods read and write files: call them in threads."""

    noun: ClassVar[str] = "batch"

    @property
    def request(self) -> Kept:
        return self.asked(Kept)

    @property
    def work(self) -> LongWork:
        """What jobs run."""
        return LongWork("batch", self.id)

    @property
    def over_at(self) -> int:
        return self.request.expires_at

    @property
    def plan(self) -> Plan | None:
        return self.read(PLAN, Plan)

    @property
    def result(self) -> Result | None:
        return self.read(RESULT, Result)

    @property
    def ending(self) -> Ending | None:
        return self.read(FINALIZING, Ending)

    @property
    def parts(self) -> Path:
        return self.directory / PARTS

    def ended(self) -> bool:
        return self.has(RESULT) or self.has(FAILED)

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

    def decide(self, status: End) -> Ending:
        """Decide how the batch ends, or return what has been decided."""
        with failures():
            cut = sizes(self.parts)
        output, errors = (ids.new("file-") for _ in range(2))
        self.write(
            FINALIZING,
            Ending(status=status, at=_now(), output_file_id=output, error_file_id=errors, cut=cut),
        )
        decided = self.ending
        if decided is None:
            raise NoSuchObject(f"There is no batch {self.id!r}.")
        return decided

    def cancel(self) -> None:
        """Ask whoever runs it to stop.

        Raises:
            Conflict: it has ended.
        """
        request = self.request
        if self.ended():
            status = self.snapshot().status
            raise Conflict(f"The batch {request.id!r} is {status}, and can't be cancelled.")
        self.write(CANCEL, Moment(at=_now()))

    def counts(self) -> Result:
        """Count what is durable, and what the batch has to do."""
        if (found := self.result) is not None:
            return found
        plan, ending = self.plan, self.ending
        with failures():
            cut = ending.cut if ending else None
            lines = finished(self.parts, cut).values() if plan else []
        if ending is None and self.has(FINALIZING):
            # Lines that came after the decision may have been counted.
            return self.counts()
        return counted(lines, plan.total if plan else 0)

    def snapshot(self) -> Snapshot:
        """Return how far it is.

        Raises:
            NoSuchObject: there is none, or it has just been removed.
        """
        plan, cancel, ending = self.plan, self.read(CANCEL, Moment), self.ending
        failed, result = self.read(FAILED, Failed), self.result
        counts = result or self.counts()
        mistakes = failed.mistakes if failed else []
        if result and result.status == "failed":
            mistakes = [result.mistake or INPUT_CHANGED]
        ended_at = failed.failed_at if failed else None
        return Snapshot(
            status=self._status(plan, failed, result, cancel, ending),
            counts=counts,
            planned_at=plan.made_at if plan else None,
            cancelled_at=cancel.at if cancel else None,
            ending_at=ending.at if ending else None,
            ended_at=result.at if result else ended_at,
            mistakes=mistakes,
            # Last: it is the first that goes when a batch is removed.
            request=self.request,
        )

    @staticmethod
    def _status(
        plan: Plan | None,
        failed: Failed | None,
        result: Result | None,
        cancel: Moment | None,
        ending: Ending | None,
    ) -> Status:
        if result:
            return result.status
        if failed:
            return "failed"
        if ending:
            return "cancelling" if ending.status == "cancelled" else "finalizing"
        if cancel:
            return "cancelling"
        return "in_progress" if plan else "validating"


def _now() -> int:
    return int(time.time())
