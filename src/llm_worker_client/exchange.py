"""One request to a deployed endpoint and its response, step by step."""

import base64
import re
from collections.abc import Iterator
from typing import Any

from llm_worker_client.jobs import COMPLETED, Job, Run, outputs_of
from llm_worker_client.mapping import (
    Call,
    Kind,
    PassedOn,
    Refusal,
    Request,
    dialect_of,
    read,
    refusal_of,
    responses,
)
from llm_worker_client.mapping.forms import LARGEST_FILE, Form
from llm_worker_client.mapping.requests import CONTENT_PART
from llm_worker_client.steps import Ask, Head, NotStored, Reply, Step, Steps, Store, Unreachable

# Of the jobs that run batches and fine-tunes: the platform's own default is ten minutes.
LONGEST_S = 24 * 3600
LONG = {"executionTimeout": LONGEST_S * 1000, "ttl": 2 * LONGEST_S * 1000}
RUN_WITH = "run_with"
NO_ANSWER = "The job has no answer: the platform keeps none above 20 MB."
# Seconds that the platform may be silent on a request that is passed on.
PASSED_ON_S = 330.0
PASSED_BACK = ("content-type", "retry-after")
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
# Of a number that is larger than every content.
_MOST_DIGITS = 20


class Exchange:
    """Answers one request.

    Args:
        request: as it came.
        endpoint: the endpoint's id.
        patience_s: seconds without anything new that the caller waits; None: for ever.
    """

    def __init__(self, request: Request, endpoint: str, patience_s: float | None = None) -> None:
        self._request = request
        self._endpoint = endpoint
        self._patience_s = patience_s
        self.job = Job()
        self._begun = False
        # The last events, of a stream.
        self._sent = b""

    def steps(self) -> Steps[None]:
        """Yield what is to be done, with the response's head and parts as they come.

        Raises:
            TookTooLong: nothing new has come for as long as the caller waits.
            Unreachable: the platform was lost in the middle of a file's content.
        """
        try:
            target = read(self._request, self._endpoint)
            if isinstance(target, PassedOn):
                yield from self._passed_on(target)
            else:
                yield from self._answered(target)
        except Refusal as refusal:
            yield from self._refused(refusal)
        except Unreachable as broken:
            reason = f"The platform can't be reached: {broken}"
            yield from self._refused(Refusal(502, reason, None, 1.0))

    def _passed_on(self, target: PassedOn) -> Steps[None]:
        """Pass a request of the platform's own API on; who made it sees to its job."""
        method, body = self._request.method, self._request.body or None
        reply: Reply = yield Ask(method, target.path, body, PASSED_ON_S)
        kept = {name: reply.headers[name] for name in PASSED_BACK if name in reply.headers}
        yield Head(reply.status, kept)
        yield reply.content

    def _answered(self, call: Call) -> Steps[None]:
        if call.large is not None:
            call = yield from self._stored(call, call.large)
        if call.kind is Kind.CONTENT:
            yield from self._content(call)
            return
        take = self._events if call.kind is Kind.EVENTS else self._whole
        run = Run(self.job, self._patience_s)
        submitted = yield from run.submit({"input": call.input}, reads=call.reads)
        report = yield from run.follow(submitted, take)
        if report is None:
            return
        if report.get("status") != COMPLETED:
            raise refusal_of(report)
        if not self._begun:
            raise Refusal(502, NO_ANSWER)

    def _whole(self, output: Any) -> Steps[bool]:
        if isinstance(output, dict) and RUN_WITH in output:
            output = yield from self._started(output)
        self.job.over = True
        yield from self._begin(responses.whole(output, self.job.id))
        return True

    def _events(self, output: Any) -> Steps[bool]:
        if not self._begun and not responses.is_events(output):
            return (yield from self._whole(output))
        if not self._begun:
            self._begun = True
            yield responses.head(
                200, responses.EVENTS, self.job.id, **{"cache-control": "no-cache"}
            )
        self._sent = responses.events(output)
        # Clients hang up after the last event: that is no reason to cancel.
        self.job.over = responses.is_last(self._sent)
        yield self._sent
        return self.job.over

    def _stored(self, call: Call, form: Form) -> Steps[Call]:
        """Put a file that no job holds on the volume; return the job that makes it a file."""
        try:
            with form:
                key: str = yield Store(form.path, form.filename)
        except NotStored as failed:
            message = str(failed)
            if failed.status == 413:
                message = (
                    f"The file has {form.size:,} bytes, and a job holds {LARGEST_FILE:,}. {failed} "
                    "Then it goes by the volume's S3 API. Or put it there yourself, and post "
                    '{"path": "<its key>"} to /v1/files.'
                )
            raise Refusal(failed.status, message) from None
        return call.stored(key)

    def _content(self, call: Call) -> Steps[None]:
        """Pass on the content of a file: a job for each part of it."""
        begin, end, status, more = 0, None, 200, {"accept-ranges": "bytes"}
        if call.range and call.shown_as is None:
            size = yield from self._size(call)
            if found := _range(call.range, size):
                begin, end = found
                status, more["content-range"] = 206, f"bytes {begin}-{end - 1}/{size}"
        shown = bytearray()
        while end is None or begin < end:
            size = CONTENT_PART if end is None else min(CONTENT_PART, end - begin)
            outputs = yield from self._outputs(call.part(begin, size))
            part = b"".join(map(responses.content, outputs))
            if call.shown_as is not None:
                shown += part
            else:
                if not self._begun:
                    self._begun = True
                    yield responses.head(status, responses.BINARY, self.job.id, **more)
                yield part
            if len(part) != size:
                # The file ends here.
                break
            begin += size
        if call.shown_as is not None:
            answer = {"id": call.shown_as, "content": _text(bytes(shown))}
            yield from self._begin(responses.whole(answer, self.job.id))

    def _size(self, call: Call) -> Steps[int]:
        """Return the size of a content.

        Raises:
            Refusal: there is none.
        """
        outputs = yield from self._outputs(call.described())
        try:
            return int(outputs[0]["bytes"])
        except (KeyError, TypeError, ValueError):
            raise Refusal(502, "The worker's answer has no size of the file.") from None

    def _outputs(self, call: Call) -> Steps[list[Any]]:
        """Return all that the job of a call yields.

        Raises:
            Refusal: the job has failed, or its yields are lost.
        """
        self.job = Job()
        run = Run(self.job, self._patience_s)
        submitted = yield from run.submit({"input": call.input}, reads=call.reads)
        report = yield from run.wait(submitted)
        self.job.over = True
        if report.get("status") != COMPLETED:
            raise refusal_of(report)
        if not (outputs := outputs_of(report)):
            raise Refusal(502, NO_ANSWER)
        return outputs

    def _started(self, output: dict[str, Any]) -> Steps[dict[str, Any]]:
        """Hand in the job that runs what was created; the caller need not know of it."""
        payload = {**output[RUN_WITH], "policy": LONG}
        try:
            yield from Run(Job()).submit(payload, reads=False)
        except (Refusal, Unreachable):
            # It is created, and the answer says how to start it.
            return output
        return {name: value for name, value in output.items() if name != RUN_WITH}

    def _begin(self, response: tuple[Head, bytes]) -> Iterator[Step]:
        self._begun = True
        yield from response

    def _refused(self, refusal: Refusal) -> Iterator[Step]:
        """Tell the caller of a failure, in the stream if it has begun."""
        dialect = dialect_of(self._request, self._endpoint)
        if not self._begun:
            yield from self._begin(responses.refused(refusal, dialect, self.job.id))
        elif not self._sent:
            raise Unreachable(str(refusal), sent=True)
        elif not responses.has_error(self._sent):
            yield responses.broken_off(refusal, dialect, self.job.id)


def _text(content: bytes) -> str:
    """Return a content as text, or in base64 if it is none."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return base64.b64encode(content).decode()


def _range(header: str, size: int) -> tuple[int, int] | None:
    """Return the bytes that are asked for, from the first to before the last; None: all.

    Several ranges at once are all, too, which a server may answer.

    Args:
        header: the request's ``Range``.
        size: of the content.

    Raises:
        Refusal: there are no such bytes.
    """
    found = _RANGE.fullmatch(header.replace(" ", ""))
    if not found or not any(found.groups()):
        return None
    first, last = map(_number, found.groups())
    if first is None:
        begin, end = max(0, size - (last or 0)), size
    else:
        if last is not None and last < first:
            return None
        begin, end = first, size if last is None else min(size, last + 1)
    if begin >= end:
        raise Refusal(416, f"Range: the content has {size:,} bytes")
    return begin, end


def _number(digits: str) -> int | None:
    """Return a number; one that Python doesn't convert, for its length, is only large."""
    return int(digits.lstrip("0")[:_MOST_DIGITS] or 0) if digits else None
