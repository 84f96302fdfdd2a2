"""A job of the platform, step by step: handed in, read as it yields, cancelled."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llm_worker_client.mapping import Refusal
from llm_worker_client.mapping.requests import LARGEST_JOB
from llm_worker_client.steps import Ask, Pause, Reply, Steps, TookTooLong, Unreachable

# The largest body of /run. A larger one goes to /runsync, whose job can't be cancelled.
LARGEST_RUN = 10_000_000
# Seconds before further tries, where the platform does not say.
TRIES_AFTER = (0.25, 0.5, 1.0, 2.0, 4.0)
LONGEST_PAUSE = 30.0
# Milliseconds that /runsync waits for the end, and seconds that its answer may take on its way.
RUNSYNC_MS = 90_000
ON_THE_WAY = 30.0
# Seconds that a poll of a job may be silent.
POLL_S = 60.0
# Seconds between polls that find nothing at once, which a platform that waits for news has not.
AT_ONCE = 0.1
SHORTEST_PAUSE, LONGEST_BETWEEN = 0.05, 0.5
COMPLETED = "COMPLETED"
ENDED = (COMPLETED, "FAILED", "CANCELLED", "TIMED_OUT")

# Takes a yield, and returns whether no further one is wanted.
Take = Callable[[Any], Steps[bool]]
# Gets the progress that a running job reports.
Notice = Callable[[Any], None]


@dataclass(slots=True)
class Job:
    """What is known of a job.

    Args:
        id: once the platform has it.
        over: whether nothing of it is left to cancel.
        taken: yields that were passed on.
    """

    id: str | None = None
    over: bool = False
    taken: int = 0


def send(ask: Ask, *, repeat: bool) -> Steps[Reply]:
    """Ask until there is an answer that another try would not better.

    Args:
        ask: the request.
        repeat: whether it may arrive twice.

    Raises:
        Unreachable: there is none.
    """
    for pause in TRIES_AFTER:
        wait = pause
        try:
            reply: Reply = yield ask
        except Unreachable as broken:
            if broken.sent and not repeat:
                raise
        else:
            if reply.status != 429 and (reply.status < 500 or not repeat):
                return reply
            wait = _retry_after(reply, pause)
        yield Pause(wait)
    reply = yield ask
    return reply


def cancel(job_id: str) -> Steps[None]:
    """Cancel a job; one that has ended stays as it is."""
    yield from send(Ask("POST", f"/cancel/{job_id}"), repeat=True)


class Run:
    """Hands a job in, and reads it to its end.

    Args:
        job: what is known of it; filled in on the way.
        patience_s: seconds without anything new that the caller waits; None: for ever.
    """

    def __init__(self, job: Job, patience_s: float | None = None) -> None:
        self._job = job
        self._patience_s = patience_s
        self._heard = time.monotonic()

    def submit(self, payload: dict[str, Any], *, reads: bool) -> Steps[dict[str, Any]]:
        """Hand in a job; return the platform's report of it, which may have its end.

        Args:
            payload: its input, and what else the platform takes.
            reads: whether it changes nothing: then one round trip does, and it may run twice.

        Raises:
            Refusal: the platform does not take it.
            Unreachable: it can't be reached.
        """
        content = json.dumps(payload, separators=(",", ":")).encode()
        if len(content) > LARGEST_JOB:
            raise Refusal(413, f"The request has more than {LARGEST_JOB:,} bytes as a job.")
        ask = Ask("POST", "/run", content, self._left(POLL_S), starts_job=True)
        if reads or len(content) > LARGEST_RUN:
            wait_s = self._left(RUNSYNC_MS / 1000)
            path = f"/runsync?wait={max(1_000, round(wait_s * 1000))}"
            ask = Ask("POST", path, content, wait_s + ON_THE_WAY, starts_job=True)
        report = _report((yield from send(ask, repeat=reads)))
        if "id" not in report:
            raise Refusal(502, "The platform's answer has no job.")
        self._job.id = str(report["id"])
        return report

    def follow(self, report: dict[str, Any], take: Take) -> Steps[dict[str, Any] | None]:
        """Pass on what a job yields; return its last report, None if no more was wanted.

        Args:
            report: of its submission.
            take: gets each yield.

        Raises:
            TookTooLong: nothing new has come for as long as the caller waits.
            Unreachable: the platform can't be reached.
            Refusal: it does not know the job.
        """
        if report.get("status") not in ENDED:
            report = yield from self._polled(take)
        if self._job.over:
            return None
        empty = report.get("output") is None and report.get("error") is None
        if empty and (self._job.taken == 0 or report.get("status") != COMPLETED):
            # Of workers that do not stream all yields are there, and those that were lost.
            report = yield from self.wait((yield from self._status()))
        for output in outputs_of(report)[self._job.taken :]:
            yield from self._passed(output, take)
        if self._job.over:
            return None
        self._job.over = True
        return report

    def wait(
        self, report: dict[str, Any], notice: Notice = lambda _: None
    ) -> Steps[dict[str, Any]]:
        """Return a job's last report, which has all its yields together.

        Args:
            report: of its submission.
            notice: gets its progress, whenever it is asked for.

        Raises:
            TookTooLong: it has not ended for as long as the caller waits.
            Unreachable: the platform can't be reached.
            Refusal: it does not know the job.
        """
        pause = SHORTEST_PAUSE
        while report.get("status") not in ENDED:
            notice(report.get("output"))
            self._check_patience()
            yield Pause(pause)
            pause = min(2 * pause, LONGEST_BETWEEN)
            report = yield from self._status()
        return report

    def _polled(self, take: Take) -> Steps[dict[str, Any]]:
        """Read yields as they come, until the job has ended and all are read.

        Returns:
            The last report; an empty one if yields were taken that did not arrive.
        """
        pause = SHORTEST_PAUSE
        while True:
            began = time.monotonic()
            try:
                reply = yield from send(self._poll("stream"), repeat=False)
            except Unreachable:
                self._check_patience()
                return {}
            if reply.status >= 500:
                return {}
            report = _report(reply)
            chunks = report.get("stream") or []
            for chunk in chunks:
                yield from self._passed(chunk.get("output"), take)
            if self._job.over or (report.get("status") in ENDED and not chunks):
                return report
            self._check_patience()
            pause = SHORTEST_PAUSE if chunks else min(2 * pause, LONGEST_BETWEEN)
            if not chunks and time.monotonic() - began < AT_ONCE:
                yield Pause(pause)

    def _status(self) -> Steps[dict[str, Any]]:
        return _report((yield from send(self._poll("status"), repeat=True)))

    def _passed(self, output: Any, take: Take) -> Steps[None]:
        if self._job.over:
            return
        self._heard = time.monotonic()
        self._job.taken += 1
        self._job.over = yield from take(output)

    def _poll(self, operation: str) -> Ask:
        return Ask("GET", f"/{operation}/{self._job.id}", timeout_s=self._left(POLL_S))

    def _left(self, most: float) -> float:
        """Return the seconds that a request may take."""
        if self._patience_s is None:
            return most
        return max(0.001, min(most, self._heard + self._patience_s - time.monotonic()))

    def _check_patience(self) -> None:
        if self._patience_s is not None and time.monotonic() - self._heard >= self._patience_s:
            raise TookTooLong


def outputs_of(report: dict[str, Any]) -> list[Any]:
    """Return the yields of a job that has ended; one of a handler that does not yield."""
    output = report.get("output")
    if output is None:
        return []
    return output if isinstance(output, list) else [output]


def _report(reply: Reply) -> dict[str, Any]:
    """Return the platform's report of a job.

    Raises:
        Refusal: the reply is none.
    """
    if reply.status in (401, 403):
        raise Refusal(reply.status, "The platform refuses the account's API key.")
    try:
        report = json.loads(reply.content)
    except ValueError:
        report = None
    if reply.status == 200 and isinstance(report, dict):
        return report
    said = reply.content[:500].decode(errors="replace").strip()
    status = reply.status if 400 <= reply.status <= 599 else 502
    retry_after = _retry_after(reply, 1.0) if status in (429, 502, 503, 504) else None
    raise Refusal(status, f"The platform answers {reply.status}: {said}", None, retry_after)


def _retry_after(reply: Reply, otherwise: float) -> float:
    said = reply.headers.get("retry-after", "")
    return min(float(said), LONGEST_PAUSE) if said.isdecimal() else otherwise
