"""Fine-tunes on the volume: what was asked, how far each is, how it ended; its files are that."""

import contextlib
import shutil
from pathlib import Path
from typing import ClassVar, Literal

from trainer.spec import (
    ATTEMPTS,
    CHECKED,
    CHECKPOINTS,
    EPOCHS,
    OUTCOME,
    Checked,
    Data,
    Outcome,
    step_of,
)
from worker.errors import Conflict, VolumeError
from worker.fine_tunes.events import Told, by_step, events
from worker.fine_tunes.request import Decision, FineTuneResult, Publishing, Status, StoredFineTune
from worker.long_work.record import DECISION, PAUSED, REQUEST, RESULT, Moment, Record
from worker.long_work.records import Records
from worker.volume import failures

# How rows are written, by the ending of a file's name.
FORMS: dict[str, Literal["csv", "jsonl"]] = {".csv": "csv", ".jsonl": "jsonl"}
# Files in a fine-tune's directory, beside those of all long work. With a number from 1: the newest
# pause holds until there is a resumption with its number.
PAUSE, RESUME = "pause-{}.json", "resume-{}.json"


class FineTune(Record):
    """One fine-tune's directory. Its methods read and write files: call them in threads."""

    kind: ClassVar[str] = "fine_tune"
    noun: ClassVar[str] = "fine-tuning job"

    @property
    def request(self) -> StoredFineTune:
        return self.require(REQUEST, StoredFineTune)

    @property
    def result(self) -> FineTuneResult | None:
        return self.read(RESULT, FineTuneResult)

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
        if self.stopping() == PAUSED:
            return PAUSED
        if not self.held():
            return "queued"
        return "running" if self.checked else "validating_files"

    @property
    def checked(self) -> Checked | None:
        """What the newest look at the data has found."""
        found = (self.read(f"{ATTEMPTS}/{one.name}/{CHECKED}", Checked) for one in self.attempts())
        return next(filter(None, reversed(list(found))), None)

    def stopping(self) -> str | None:
        """Return why nobody is to work on it, unless its result is being published."""
        decision = self.decision
        if decision and decision.status == "cancelled":
            return "cancelled"
        pauses = self._pauses()
        return PAUSED if pauses and not self.has(RESUME.format(pauses)) else None

    def attempts(self) -> list[Path]:
        """Return the directories of the attempts, the oldest first."""
        with failures():
            try:
                found = list((self.directory / ATTEMPTS).iterdir())
            except FileNotFoundError:
                return []
        return sorted(path for path in found if path.name[0].isdigit())

    def add_attempt(self, owner: str) -> Path:
        """Make the directory of another attempt: by their names they are in order.

        Args:
            owner: of the lease, under which nobody else begins one.
        """
        attempts = self.attempts()
        number = int(attempts[-1].name.partition(".")[0]) + 1 if attempts else 1
        attempt = self.directory / ATTEMPTS / f"{number:06d}.{owner}"
        with failures():
            attempt.mkdir(parents=True)
        return attempt

    def outcome_of(self, attempt: Path) -> Outcome | None:
        """Return how the training ended in an attempt; None: it did not."""
        return self.read(f"{ATTEMPTS}/{attempt.name}/{OUTCOME}", Outcome)

    def durable_step(self) -> int:
        """Return the step that another attempt would go on from."""
        with failures():
            names = [
                path.name
                for attempt in self.attempts()
                for path in (attempt / CHECKPOINTS).glob("*")
            ]
        return max((step for step in map(step_of, names) if step is not None), default=0)

    def epochs(self, last: Path) -> dict[int, Path]:
        """Return the adapters of all epochs by their steps.

        Args:
            last: the attempt that ended the training; of what several have made, it counts.
        """
        found: dict[int, Path] = {}
        with failures():
            for attempt in (*self.attempts(), last):
                for path in (attempt / EPOCHS).glob("*"):
                    if path.name.isdecimal():
                        found[int(path.name)] = path
        return dict(sorted(found.items()))

    def events(self) -> list[Told]:
        """Return what it has told, the oldest first, over all attempts at it.

        Raises:
            NoSuchObject: there is no such fine-tune.
            VolumeError: the volume fails.
        """
        return events(self.id, self.created_at, self.attempts(), self.result)

    def metrics(self) -> dict[int, dict[str, float]]:
        """Return the metrics of each step that has any, by OpenAI's names."""
        return by_step(self.events())

    def cancel(self) -> None:
        """Ask whoever runs it to stop, for good.

        Raises:
            Conflict: it has ended, or its adapter is being published.
        """
        self._check_open("cancelled")
        # Whoever publishes, or gives it up, may be faster.
        decided = self.settle_on(DECISION, Decision(status="cancelled"))
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
        self.write(PAUSE.format(self._pauses() + 1), Moment())

    def resume(self) -> None:
        """Let a paused one go on.

        Raises:
            Conflict: it is not paused.
        """
        self._check_open("resumed")
        if self.stopping() != PAUSED:
            raise Conflict(f"The {self.noun} {self.id!r} is not paused.")
        self.write(RESUME.format(self._pauses()), Moment())

    def decide(self, publishing: Publishing) -> Publishing | None:
        """Decide which adapter is published, or return what has been decided; None: none is."""
        decision = Decision(status="succeeded", publishing=publishing)
        return self.settle_on(DECISION, decision).publishing

    def end(self, result: FineTuneResult) -> FineTuneResult:
        """End it, or return how it has ended. What the attempts went on from takes no more room.

        One that was cancelled does not fail any more.
        """
        if result.status == "failed":
            decided = self.settle_on(DECISION, Decision(status="failed", at=result.at))
            if decided.status == "cancelled":
                result = FineTuneResult(status="cancelled", at=result.at)
        ended = self.settle_on(RESULT, result)
        self._tidy()
        return ended

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


class FineTunes(Records[FineTune, StoredFineTune]):
    """All fine-tunes of a volume. Its methods read and write files: call them in threads.

    One is removed when it ended long ago, but not its adapter.
    """

    record = FineTune
    prefix: ClassVar[str] = "ftjob-"
    folder: ClassVar[str] = "fine_tunes"
    param: ClassVar[str] = "fine_tuning_job_id"
    purpose: ClassVar[str] = "fine-tune"

    def end(self, one: FineTune, how: Status) -> FineTuneResult:
        """End a fine-tune that has made nothing."""
        return one.end(FineTuneResult(status=how))

    def data(self, file_id: str) -> Data:
        """Return where the rows of a fine-tune are.

        Raises:
            NoSuchObject: they are no longer there.
        """
        # While a fine-tune needs it, a file that has expired is not removed.
        file = self.files.get(file_id, expired=True)
        form = FORMS.get(Path(file.filename.lower()).suffix)
        return Data(path=self.files.content(file).absolute(), form=form)
