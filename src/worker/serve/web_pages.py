"""Blocks web pages, since any page in a browser on this machine could call a local worker."""

import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from llm_worker_console.web_pages import PageRefusal, find_page_refusal
from worker.errors import Forbidden
from worker.serve.service import error_response

_MESSAGES = {
    PageRefusal.FOREIGN_HOST: (
        "The Host header does not name this machine. On a loopback address the worker serves IP "
        "addresses and local names: add https://<name> to ALLOWED_ORIGINS to serve another name, "
        "or set SERVE_API_KEY and another --host."
    ),
    PageRefusal.FOREIGN_PAGE: (
        "Web pages may not call this worker: ALLOWED_ORIGINS lists the origins of those that may."
    ),
}


class WebPageFilter:
    """An app that only programs of this machine and web pages of the allowed origins may call."""

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and (
            refusal := find_page_refusal(Headers(scope=scope), self._allowed)
        ):
            app = error_response(Forbidden(_MESSAGES[refusal]).body(str(uuid.uuid4())), scope)
        await app(scope, receive, send)
