"""One fine-tune on the volume: what was asked, how far it is, how it ended; its files are that."""

import contextlib
import shutil
import time
from pathlib import Path
from typing import ClassVar, Literal

from trainer.spec import ATTEMPTS, CHECKED, Checked
from worker.errors import Conflict, NoSuchObject, VolumeError
from worker.fine_tunes.request import Decision, Kept, Publishing, Result, Status
from worker.job.long_work import LongWork
from worker.volume import failures
from worker.volume.record import Moment, Record

# Files in a fine-tune's directory, beside its request.
DECISION, RESULT = "decision.json", "result.json"
# With a number from 1: the newest pause holds until there is a resumption with its number.
PAUSE, RESUME = "pause-{}.json", "resume-{}.json"


class FineTune(Record):
    """One fine-tune's directory. Its methods read and write files: call them in threads."""

    noun: ClassVar[str] = "fine-tuning job"

    @property
    def request(self) -> Kept:
        return self.asked(Kept)

    @property
    def work(self) -> LongWork:
        """What jobs run."""
        return LongWork("fine_tune", self.id)

    @property
    def result(self) -> Result | None:
        return self.read(RESULT, Result)

    @property
    def decision(self) -> Decision | None:
        return self.read(DECISION, Decision)

    @property
    def publishing(self) -> Publishing | None:
        decision = self.decision
        return decision.publishing if decision else None

    @property
    def over_at(self) -> int | None:
        result = self.result
        return result.at if result else None

    @property
    def status(self) -> str:
        """OpenAI's word for how far it is.

        It is queued whenever nobody works on it, and stays running until whoever does so has seen
        that it was cancelled.
        """
        if result := self.result:
            return result.status
        if self.stopping() == "paused":
            return "paused"
        if not self.held():
            return "queued"
        return "running" if self.checked else "validating_files"

    @property
    def checked(self) -> Checked | None:
        """What the newest look at the data has found."""
        found = (self.read(f"{ATTEMPTS}/{one.name}/{CHECKED}", Checked) for one in self.attempts())
        return next(filter(None, reversed(list(found))), None)

    def ended(self) -> bool:
        return self.has(RESULT)

    def stopping(self) -> Literal["cancelled", "paused"] | None:
        """Return why nobody is to work on it, unless its result is being published."""
        decision = self.decision
        if decision and decision.status == "cancelled":
            return "cancelled"
        pauses = self._pauses()
        return "paused" if pauses and not self.has(RESUME.format(pauses)) else None

    def attempts(self) -> list[Path]:
        """Return the directories of the attempts, the oldest first."""
        with failures():
            try:
                found = list((self.directory / ATTEMPTS).iterdir())
            except FileNotFoundError:
                return []
        return sorted(path for path in found if path.name[0].isdigit())

    def leases(self, name: str = "run") -> Path:
        return super().leases(name)

    def cancel(self) -> None:
        """Ask whoever runs it to stop, for good.

        Raises:
            Conflict: it has ended, or its adapter is being published.
        """
        self._check_open("cancelled")
        # Whoever publishes, or gives it up, may be faster.
        decided = self._decided(Decision(status="cancelled", at=_now().at))
        if decided.status != "cancelled":
            raise self._too_late("cancelled", decided.status)

    def pause(self) -> None:
        """Ask whoever runs it to stop after a checkpoint, until ``resume``.

        Raises:
            Conflict: it has ended, its adapter is being published, or it was stopped already.
        """
        self._check_open("paused")
        if stopping := self.stopping():
            raise Conflict(f"The {self.noun} {self.id!r} is {stopping} already.")
        self.write(PAUSE.format(self._pauses() + 1), _now())

    def resume(self) -> None:
        """Let a paused one go on.

        Raises:
            Conflict: it is not paused.
        """
        self._check_open("resumed")
        if self.stopping() != "paused":
            raise Conflict(f"The {self.noun} {self.id!r} is not paused.")
        self.write(RESUME.format(self._pauses()), _now())

    def decide(self, publishing: Publishing) -> Publishing | None:
        """Decide which adapter is published, or return what has been decided; None: none is."""
        now = _now().at
        return self._decided(Decision(status="succeeded", at=now, publishing=publishing)).publishing

    def end(self, result: Result) -> Result:
        """End it, or return how it has ended. What the attempts went on from takes no more room.

        One that was cancelled does not fail any more.
        """
        if result.status == "failed":
            decided = self._decided(Decision(status="failed", at=result.at))
            if decided.status == "cancelled":
                result = Result(status="cancelled", at=result.at)
        self.write(RESULT, result)
        self._tidy()
        if (ended := self.result) is None:
            raise NoSuchObject(f"There is no {self.noun} {self.id!r}.")
        return ended

    def settle(self) -> None:
        """End it if it was cancelled, and nobody works on it who would."""
        if self.stopping() == "cancelled" and not (self.ended() or self.held()):
            self.end(Result(status="cancelled", at=_now().at))

    def _decided(self, decision: Decision) -> Decision:
        """Decide how it ends, or return what has been decided."""
        self.write(DECISION, decision)
        if (decided := self.decision) is None:
            raise NoSuchObject(f"There is no {self.noun} {self.id!r}.")
        return decided

    def _tidy(self) -> None:
        # It has ended, whatever is left of it: that goes with the rest of it, at the latest.
        with contextlib.suppress(OSError, VolumeError):
            for place in self.attempts():
                for left in place.iterdir():
                    if left.is_dir():
                        shutil.rmtree(left, ignore_errors=True)

    def _check_open(self, wanted: str) -> None:
        # Nothing is written for one that is not there.
        _ = self.request
        if result := self.result:
            raise self._too_late(wanted, result.status, ended=True)
        if self.publishing:
            raise self._too_late(wanted, "succeeded")

    def _too_late(self, wanted: str, status: Status, *, ended: bool = False) -> Conflict:
        if status == "succeeded" and not ended:
            return Conflict(
                f"The adapter of the {self.noun} {self.id!r} is being published: "
                f"it can't be {wanted} any more."
            )
        return Conflict(f"The {self.noun} {self.id!r} has {_ENDED[status]}, and can't be {wanted}.")

    def _pauses(self) -> int:
        """Return the number of the newest pause; 0: there was none."""
        number = 0
        while self.has(PAUSE.format(number + 1)):
            number += 1
        return number


_ENDED: dict[Status, str] = {
    "succeeded": "succeeded",
    "failed": "failed",
    "cancelled": "been cancelled",
}


def _now() -> Moment:
    return Moment(at=int(time.time()))
