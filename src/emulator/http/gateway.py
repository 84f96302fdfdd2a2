"""The OpenAI gateway: turns a request to OpenAI's API into a job, and its outputs into HTTP."""

from typing import Any

import msgspec
from aiohttp import web

from emulator.http.answering import Answering, as_bytes, as_event, error_of, output_of
from emulator.http.wire import parse_parts, read_body
from emulator.limits import RUNSYNC_BYTES
from emulator.options import FailedAs
from emulator.state.job import Job, Status

_LAST_EVENT = b"data: [DONE]\n\n"


class Gateway(Answering):
    """Serves /openai/…. Path and body reach the worker; headers and query do not.

    What the real gateway does with chunks that are no text is not public: here each is an event.
    """

    def routes(self) -> list[web.RouteDef]:
        # No DELETE: a job does not hold the method, so the worker would take it for a POST.
        return [
            web.get("/openai/{path:.+}", self.answer),
            web.post("/openai/{path:.+}", self.answer),
        ]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request) if request.method == "POST" else None
        given = {"openai_route": f"/{request.match_info['path']}", "openai_input": body}
        stream = body is not None and bytes(body.get("stream", b"")) == b"true"
        return await self._answer(request, given, stream=stream)

    async def _read(self, request: web.Request) -> dict[str, msgspec.Raw]:
        # The gateway's real limit is not public; its caller waits, as that of /runsync.
        body = await read_body(request, RUNSYNC_BYTES, self._options.oversize_status)
        return parse_parts(body)

    def _is_end(self, events: bytes) -> bool:
        return events.endswith(_LAST_EVENT)

    def _broken(self, job: Job) -> bytes:
        return as_event(error_of(job))

    def _whole(self, request: web.Request, job: Job) -> web.Response:
        if job.status is not Status.COMPLETED:
            body = error_of(job)
            return web.json_response(body, status=self._error_status(body))
        output = output_of(job)
        if isinstance(output, str):
            return web.Response(body=as_bytes(output), content_type="text/plain", charset="utf-8")
        return web.json_response(output)

    def _error_status(self, body: dict[str, Any]) -> int:
        if self._options.failed_as is FailedAs.OK:
            return 200
        code = body["error"].get("code")
        if (
            self._options.failed_as is FailedAs.ERROR_CODE
            and isinstance(code, int)
            and 400 <= code <= 599
        ):
            return code
        return 500
