"""The ASGI app of a worker that can't start: every request is answered why."""

import json
import uuid

from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from worker.errors import StartFailed, Unauthorized
from worker.serve import keys
from worker.serve.service import OPEN_TO_ALL, response

# OpenAI's client would otherwise try a 503 again.
_FINAL = {"x-should-retry": "false"}


class Refusal:
    """Answers 503 with the reason to whoever has the key, and without it to load balancers."""

    def __init__(self, error: StartFailed, key: SecretStr | None) -> None:
        self._error = error
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, request_id = Request(scope, receive), str(uuid.uuid4())
        answer = self._answer(request, request_id)
        answer.headers.update(_FINAL)
        await answer(scope, receive, send)

    def _answer(self, request: Request, request_id: str) -> Response:
        if self._key is None or keys.right(request.headers, self._key):
            error = self._error.body(request_id)
        elif request.scope["path"] in OPEN_TO_ALL:
            return Response(status_code=self._error.status)
        else:
            error = Unauthorized().body(request_id)
        return response({"error": json.dumps(error)}, request_id, request.scope)
