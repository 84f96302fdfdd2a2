"""Converts an HTTP request to the job that answers it."""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from typing import Any
from urllib.parse import parse_qsl, urlencode

from llm_worker_client.mapping import forms
from llm_worker_client.mapping.responses import Dialect, Refusal

# Maximum bytes of a job: the limit of /runsync, which is higher than the limit of /run.
MAX_JOB_BYTES = 20_000_000
# Bytes of file content per job. The job's result contains them as base64, and the platform stores
# no result above 20 MB.
CONTENT_PART_BYTES = 12_000_000
# Milliseconds that the platform's synchronous routes wait for the end of a job. Its gateway gives
# up after 100 seconds, and the job's id is then lost: the client waits for the minimum, and polls.
DEFAULT_WAIT_MS, MIN_WAIT_MS, MAX_WAIT_MS = 90_000, 1_000, 300_000

# Header whose value 1 requests a receipt in the response.
RECEIPT_HEADER = "x-receipt"


class OutputKind(StrEnum):
    """How a job's yields form the response."""

    WHOLE = auto()  # one yield with the whole response
    EVENTS = auto()  # server-sent events
    CONTENT = auto()  # bytes of a file


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request."""

    method: str
    target: str  # path and query string, still percent-encoded
    headers: Mapping[str, str]  # with lowercase names
    body: bytes = b""
    form: forms.Form | None = None  # the parsed body, if it is a form; `body` is then empty

    def header(self, name: str) -> str:
        return self.headers.get(name, "")

    @property
    def media_type(self) -> str:
        return self.header("content-type").partition(";")[0].strip().lower()

    @property
    def is_anthropic(self) -> bool:
        """Whether one of Anthropic's clients sent the request. They share /files with OpenAI's."""
        return "anthropic-version" in self.headers

    @property
    def has_basic_auth(self) -> bool:
        """Whether the request has Basic authorization, which LLM Engine's client sends."""
        return self.header("authorization").lower().startswith("basic ")


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """A request for the platform's own API, which is forwarded."""

    path: str  # below the endpoint's URL, with the query string
    wait_s: float | None = None  # for which to poll the job in the response; None for no polls


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job that answers a request, and how to read its output."""

    input: dict[str, Any]
    kind: OutputKind
    is_read_only: bool  # it changes nothing and may be sent again
    json_file_id: str | None = None  # id of the file whose content is requested as JSON
    range_header: str = ""  # of a request for a file's content
    large_form: forms.Form | None = None  # its file is too large for a job; see `with_stored_file`

    def for_content_part(self, offset: int, size: int = CONTENT_PART_BYTES) -> "JobRequest":
        """Return the job that reads ``size`` bytes of the file's content from an offset."""
        route = self.input["openai_route"]
        separator = "&" if "?" in route else "?"
        return self._with_route(f"{route}{separator}offset={offset}&limit={size}")

    def for_file_details(self) -> "JobRequest":
        """Return the job that reads the file's metadata, which include its size."""
        path = self.input["openai_route"].partition("?")[0]
        return self._with_route(path.removesuffix("/content"))

    def with_stored_file(self, key: str) -> "JobRequest":
        """Return the job that registers the large file, which the volume contains as ``key``."""
        name = "openai_input" if "openai_input" in self.input else "body"
        body = {**self.input[name], "path": key}
        return replace(self, input={**self.input, name: body}, large_form=None)

    def _with_route(self, route: str) -> "JobRequest":
        return replace(self, input={**self.input, "openai_route": route})


@dataclass(frozen=True, slots=True)
class SpecialRoute:
    """Special handling of the routes whose path without ``/v1`` matches a pattern.

    Without ``method``, all methods match. Without ``kind``, the body's ``stream`` decides.
    """

    path: re.Pattern[str]
    method: str | None = None
    kind: OutputKind | None = None
    dialect: Dialect = Dialect.OPENAI


# Routes with special handling. Jobs for other requests depend only on method, path and body.
ROUTE_RULES = (
    SpecialRoute(re.compile(r"/files/(?P<id>[^/]+)/content"), "GET", OutputKind.CONTENT),
    SpecialRoute(
        re.compile(r"/llm/completions-stream"), "POST", OutputKind.EVENTS, Dialect.LLM_ENGINE
    ),
    SpecialRoute(re.compile(r"/llm/.+|/v2/batch-completions(/.+)?"), dialect=Dialect.LLM_ENGINE),
    SpecialRoute(re.compile(r"/messages(/.+)?"), dialect=Dialect.ANTHROPIC),
)
_FILES = re.compile(r"/files(/.+)?")
# OpenAI's routes that take forms, and that no worker serves.
_UNSERVED = re.compile(r"/(audio|images|uploads|videos)(/.+)?")
PLATFORM_PATH_PATTERN = re.compile(
    r"(run|runsync|purge-queue|health)|(status|status-sync|stream|cancel|retry)/[\w-]+"
)
_VERSION = re.compile(r"^(/v1)+(?=/)")
_NUMBER = re.compile(r"[0-9]{1,9}")
_READ_METHODS = ("GET", "HEAD")


def convert_request(request: Request, endpoint: str) -> JobRequest | ForwardedRequest:
    """Return the job or the forwarded request that answers a request.

    The paths are those of the worker. They may be prefixed with ``/v2/<endpoint>`` or
    ``/v2/<endpoint>/openai`` as on the platform.
    """
    path, separator, query = request.target.partition("?")
    prefix = f"/v2/{endpoint}/"
    if path.startswith(prefix) and PLATFORM_PATH_PATTERN.fullmatch(path.removeprefix(prefix)):
        return _forward_request(f"/{path.removeprefix(prefix)}", query)
    path, unversioned_path = _worker_path(path, endpoint), _unversioned_path(request, endpoint)
    if request.is_anthropic and _FILES.fullmatch(unversioned_path):
        raise Refusal(404, "Anthropic's API for files is not served: send a file's text.")
    rule, path_values = find_rule(unversioned_path, request.method)
    accepts_json = request.has_basic_auth or "application/json" in request.header("accept")
    body = _parse_body(request) if takes_body(request, endpoint) else None

    route = f"{path}{separator}{query}"
    is_read_only = request.method in _READ_METHODS
    # Use the gateway's own format, which every worker supports, if it can express the request.
    if is_read_only or (request.method == "POST" and body):
        job_input: dict[str, Any] = {"openai_route": route, "openai_input": body}
    else:
        job_input = {"route": route, "method": request.method, "body": body}
    if request.header(RECEIPT_HEADER) == "1":
        job_input["receipt"] = True
    is_stream = bool(body and body.get("stream") is True)
    return JobRequest(
        input=job_input,
        kind=rule.kind or (OutputKind.EVENTS if is_stream else OutputKind.WHOLE),
        is_read_only=is_read_only,
        json_file_id=path_values.get("id") if accepts_json else None,
        range_header=request.header("range"),
        large_form=request.form if request.form and request.form.has_large_file else None,
    )


def takes_body(request: Request, endpoint: str) -> bool:
    """Return whether a request's body is read: the bodies of the others have no meaning."""
    is_unserved = _UNSERVED.fullmatch(_unversioned_path(request, endpoint))
    return request.method not in _READ_METHODS and not is_unserved


def is_upload(request: Request, endpoint: str) -> bool:
    is_form = request.media_type == forms.MEDIA_TYPE
    return is_form and _unversioned_path(request, endpoint) == "/files"


def find_dialect(request: Request, endpoint: str) -> Dialect:
    if request.is_anthropic:
        return Dialect.ANTHROPIC
    dialect = find_rule(_unversioned_path(request, endpoint), request.method)[0].dialect
    return Dialect.LLM_ENGINE if request.has_basic_auth and dialect is Dialect.OPENAI else dialect


def find_rule(path: str, method: str) -> tuple[SpecialRoute, dict[str, str]]:
    """Return the rule for a path, by default an empty one, and the named values in the path."""
    method = "GET" if method == "HEAD" else method
    for rule in ROUTE_RULES:
        if rule.method in (None, method) and (match := rule.path.fullmatch(path)):
            return rule, match.groupdict()
    return SpecialRoute(re.compile("")), {}


def _forward_request(path: str, query: str) -> ForwardedRequest:
    """Return a forwarded request, which waits for ``MIN_WAIT_MS`` if it would wait for longer."""
    options = dict(parse_qsl(query))
    wait = options.get("wait", str(DEFAULT_WAIT_MS))
    is_sync = path.startswith(("/runsync", "/status-sync/")) and _NUMBER.fullmatch(wait)
    if is_sync and MIN_WAIT_MS < int(wait) <= MAX_WAIT_MS:
        options["wait"] = str(MIN_WAIT_MS)
        return ForwardedRequest(f"{path}?{urlencode(options)}", (int(wait) - MIN_WAIT_MS) / 1000)
    return ForwardedRequest(f"{path}?{query}" if query else path)


def _worker_path(path: str, endpoint: str) -> str:
    """Return a path without the prefix of the endpoint on the platform."""
    prefix = f"/v2/{endpoint}/"
    if not path.startswith(prefix):
        return path
    return "/" + path.removeprefix(prefix).removeprefix("openai/")


def _unversioned_path(request: Request, endpoint: str) -> str:
    """Return the worker's path without the query string and ``/v1``."""
    return _VERSION.sub("", _worker_path(request.target.partition("?")[0], endpoint))


def _parse_body(request: Request) -> dict[str, Any] | None:
    """Return the body as JSON; of a form with a large file without the file's content."""
    if form := request.form:
        if form.file_size is None:
            raise Refusal(400, "file: the form has no file with this name")
        body = {**form.fields, "filename": form.filename} if form.filename else {**form.fields}
        if form.has_large_file:
            return {**body, "path": ""}
        return {**body, "content_base64": base64.b64encode(form.read_file_content()).decode()}
    if not request.body:
        return None
    if request.media_type not in ("", "application/json"):
        raise Refusal(415, "Send the body as JSON, with the header Content-Type: application/json.")
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"The body is broken JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refusal(400, "The body is not a JSON object.")
    return body
