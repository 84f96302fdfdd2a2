"""A request of HTTP as the job that answers it."""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from typing import Any

from llm_worker_client.mapping import forms
from llm_worker_client.mapping.errors import Dialect, Refusal

# The largest body of /runsync, which is larger than that of /run.
LARGEST_JOB = 20_000_000
# Bytes of a content that one job answers, as base64: the platform keeps no result above 20 MB.
CONTENT_PART = 12_000_000


class Kind(StrEnum):
    """What a job yields."""

    WHOLE = auto()  # the answer, at once
    EVENTS = auto()  # server-sent events
    CONTENT = auto()  # bytes of a file


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came.

    Args:
        method: of HTTP.
        target: the path with the query string, escaped as it came.
        headers: their names in small letters.
        body: all of it.
        form: the body, if it is a form that has been read already.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""
    form: forms.Form | None = None

    def header(self, name: str) -> str:
        return self.headers.get(name, "")

    @property
    def media_type(self) -> str:
        return self.header("content-type").partition(";")[0].strip().lower()

    @property
    def is_form(self) -> bool:
        return self.media_type == forms.MEDIA_TYPE

    @property
    def basic(self) -> bool:
        """Whether it has Basic authorization, which LLM Engine's client sends."""
        return self.header("authorization").lower().startswith("basic ")


@dataclass(frozen=True, slots=True)
class PassedOn:
    """A request to the platform's own API, which goes there as it is."""

    path: str


@dataclass(frozen=True, slots=True)
class Call:
    """A job, and how its answer is to be read.

    Args:
        input: of the job.
        kind: what it yields.
        reads: whether it changes nothing, so that it may be sent again.
        shown_as: the id of a file whose content is wanted as JSON, LLM Engine's.
        range: of a content, as the request has it.
        large: the form with a file that no job holds: see ``stored``.
    """

    input: dict[str, Any]
    kind: Kind
    reads: bool
    shown_as: str | None = None
    range: str = ""
    large: forms.Form | None = None

    def part(self, offset: int, size: int = CONTENT_PART) -> "Call":
        """Return the job for a part of a content.

        Args:
            offset: bytes before it.
            size: in bytes.
        """
        route = self.input["openai_route"]
        joint = "&" if "?" in route else "?"
        return self._of(f"{route}{joint}offset={offset}&limit={size}")

    def described(self) -> "Call":
        """Return the job that answers how large the file of a content is."""
        return self._of(self.input["openai_route"].partition("?")[0].removesuffix("/content"))

    def stored(self, key: str) -> "Call":
        """Return the job for a large file that is on the volume now.

        Args:
            key: its path there.
        """
        name = "openai_input" if "openai_input" in self.input else "body"
        body = {**self.input[name], "path": key}
        return replace(self, input={**self.input, name: body}, large=None)

    def _of(self, route: str) -> "Call":
        return replace(self, input={**self.input, "openai_route": route})


@dataclass(frozen=True, slots=True)
class Special:
    """What is special about a route. Patterns are of a whole path, without ``/v1``."""

    path: re.Pattern[str]
    method: str | None = None
    kind: Kind | None = None
    dialect: Dialect = Dialect.OPENAI


# All that is special. Any other request becomes a job by its method, path and body alone.
SPECIAL = (
    Special(re.compile(r"/files/(?P<id>[^/]+)/content"), "GET", Kind.CONTENT),
    Special(re.compile(r"/llm/completions-stream"), "POST", Kind.EVENTS, Dialect.LLM_ENGINE),
    Special(re.compile(r"/llm/.+|/v2/batch-completions(/.+)?"), dialect=Dialect.LLM_ENGINE),
    Special(re.compile(r"/messages(/.+)?"), dialect=Dialect.ANTHROPIC),
)
PLATFORM = re.compile(
    r"(run|runsync|purge-queue|health)|(status|status-sync|stream|cancel|retry)/[\w-]+"
)
_VERSION = re.compile(r"^(/v1)+(?=/)")
_READING = ("GET", "HEAD")


def read(request: Request, endpoint: str) -> Call | PassedOn:
    """Return what answers a request.

    Paths are those of the worker, or below ``/v2/<endpoint>`` and ``/v2/<endpoint>/openai``, as
    the platform has them.

    Raises:
        Refusal: no job can hold it.
    """
    path, mark, query = request.target.partition("?")
    below = f"/v2/{endpoint}/"
    if path.startswith(below) and PLATFORM.fullmatch(path.removeprefix(below)):
        return PassedOn(f"/{path.removeprefix(below)}{mark}{query}")
    path = _route(path, endpoint)
    special, found = _special(path, request.method)
    wants_json = request.basic or "application/json" in request.header("accept")
    form = request.form
    if form is None and request.is_form and request.body:
        form = forms.read(request.header("content-type"), (request.body,))
    body = None if request.method in _READING else _body(request, form)
    kind = special.kind or (Kind.EVENTS if body and body.get("stream") is True else Kind.WHOLE)
    return Call(
        input=_input(request.method, f"{path}{mark}{query}", body),
        kind=kind,
        reads=request.method in _READING,
        shown_as=found.get("id") if wants_json else None,
        range=request.header("range"),
        large=form if form is not None and _is_large(form) else None,
    )


def dialect_of(request: Request, endpoint: str) -> Dialect:
    """Return whose errors a caller reads."""
    path = _route(request.target.partition("?")[0], endpoint)
    dialect = _special(path, request.method)[0].dialect
    return Dialect.LLM_ENGINE if request.basic and dialect is Dialect.OPENAI else dialect


def _route(path: str, endpoint: str) -> str:
    """Return a path of the worker: what follows the endpoint's own address, if it has that."""
    below = f"/v2/{endpoint}/"
    if not path.startswith(below):
        return path
    return "/" + path.removeprefix(below).removeprefix("openai/")


def _special(path: str, method: str) -> tuple[Special, dict[str, str]]:
    """Return the row of a path, and the values in the path."""
    path = _VERSION.sub("", path)
    for row in SPECIAL:
        if row.method in (None, "GET" if method == "HEAD" else method) and (
            found := row.path.fullmatch(path)
        ):
            return row, found.groupdict()
    return Special(re.compile("")), {}


def _input(method: str, route: str, body: dict[str, Any] | None) -> dict[str, Any]:
    # The gateway's own form, which every worker knows, where it says enough.
    if method in _READING or (method == "POST" and body):
        return {"openai_route": route, "openai_input": body}
    return {"route": route, "method": method, "body": body}


def _is_large(form: forms.Form) -> bool:
    return (form.size or 0) > forms.LARGEST_FILE


def _body(request: Request, form: forms.Form | None) -> dict[str, Any] | None:
    if form is not None:
        return _upload(form)
    if not request.body:
        return None
    if request.media_type not in ("", "application/json"):
        raise Refusal(415, f"A job holds JSON or a form, not {request.media_type}.")
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError) as broken:
        raise Refusal(400, f"The body is broken JSON: {broken}") from None
    if not isinstance(body, dict):
        raise Refusal(400, "The body is not a JSON object.")
    return body


def _upload(form: forms.Form) -> dict[str, Any]:
    """Return a form with a file as the JSON that uploads it, but for the content if it is large."""
    if form.size is None:
        raise Refusal(400, "file: the form has no file of this name")
    named = {"filename": form.filename} if form.filename else {}
    if _is_large(form):
        return {**form.fields, **named, "path": ""}
    content = base64.b64encode(form.content()).decode()
    return {**form.fields, **named, "content_base64": content}
