"""Files over HTTP: uploads in forms, which jobs can't hold, and contents as bytes."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from worker.dialects.llm_engine.models import BASE_URL, DOWNLOAD, FILE
from worker.dialects.openai import objects
from worker.dialects.openai.files import CONTENT, FILES, LLM_ENGINE, Upload
from worker.dialects.table import find
from worker.errors import InvalidInput, NoSuchObject, VolumeError
from worker.files import MEGABYTE, Files
from worker.job import OpenAIJob
from worker.routes.route import Route
from worker.serve.bodies import Bodies
from worker.serve.keys import authorization
from worker.settings import Settings
from worker.volume import adapters, failures

FORM = "multipart/form-data"
# Of a form: fields besides the file, bytes of each, and of all that is not the file's content.
MOST_FIELDS = 8
LARGEST_FIELD = 4_096
AROUND = 100_000
# Bytes that are copied at once.
STEP = 1_000_000
BINARY = "application/octet-stream"
# How forms spell an object's keys.
NESTED = "expires_after["
# What only bodies in JSON have.
ELSEWHERE = ("content", "content_base64", "path")


class Transfers:
    """Answers requests whose bodies, or answers, are the contents of files.

    Args:
        files: of the volume.
        settings: the worker's.
    """

    def __init__(self, files: Files, settings: Settings) -> None:
        self._files = files
        self._adapters = adapters.directory(settings.base_path)
        largest = settings.files_max_mb * MEGABYTE + AROUND
        self._bodies = Bodies(largest, settings.serve_timeout_s, "FILES_MAX_MB")

    def take(self, request: Request) -> Route | None:
        """Return the route of a request that is answered here; None: it becomes a job."""
        route = _route(request)
        if route is None:
            return None
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_form = route.path == FILES and route.method == "POST" and media_type == FORM
        is_bytes = route.path == FILE or (route.path == CONTENT and not _wants_json(request))
        return route if is_form or is_bytes else None

    async def answer(self, request: Request, route: Route) -> Response:
        """Answer a request that was taken.

        Raises:
            WorkerError: it is refused.
        """
        if route.path == FILES:
            return JSONResponse(await self._receive(request))
        found = route.match(OpenAIJob(route=request.scope["path"]).path) or {}
        if route.path == FILE:
            return await asyncio.to_thread(self._of_adapter, found["name"], found["file"])
        return await asyncio.to_thread(self._content, found["id"])

    async def _receive(self, request: Request) -> dict[str, Any]:
        form = await self._read(request)
        try:
            upload, opened = _upload(form)
            source = iter(lambda: opened.file.read(STEP), b"")
            stored = await asyncio.to_thread(upload.receive, self._files, source)
        finally:
            await form.close()
        return objects.file(stored)

    async def _read(self, request: Request) -> FormData:
        """Read a form; the file in it is on the disk if it is large."""
        async with contextlib.aclosing(self._bodies.parts(request)) as parts:
            try:
                return await _Form(request.headers, parts).parse()
            except MultiPartException as broken:
                raise InvalidInput(f"The form is refused: {broken.message}") from None
            except OSError as error:
                text = os.strerror(error.errno or 0)
                raise VolumeError(f"The worker's own disk fails: {text}.") from error

    def _content(self, id: str) -> Response:
        file = self._files.get(id)
        place = self._files.content(file)
        with failures():
            found = place.stat()
        return FileResponse(place, media_type=BINARY, filename=file.filename, stat_result=found)

    def _of_adapter(self, name: str, file: str) -> Response:
        place = adapters.adapter_files(self._adapters, name).get(file)
        if place is None:
            raise NoSuchObject(f"The adapter {name!r} has no file {file!r}.")
        return FileResponse(place, media_type=BINARY, filename=file)


class _Form(MultiPartParser):
    """A form, of which few fields are read, and which has to have its end."""

    def __init__(self, headers: Headers, parts: AsyncGenerator[bytes, None]) -> None:
        limits = {"max_files": 1, "max_fields": MOST_FIELDS, "max_part_size": LARGEST_FIELD}
        super().__init__(headers, self._whole(parts), **limits)
        self._ended = False

    def on_end(self) -> None:
        self._ended = True

    async def _whole(self, parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        async for part in parts:
            yield part
        if not self._ended:
            raise MultiPartException("It breaks off before its end.")


def _upload(form: FormData) -> tuple[Upload, UploadFile]:
    """Return what a form says of a file, and the file.

    Raises:
        InvalidInput: naming the field that is wrong.
    """
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise InvalidInput("file: the form has no file of this name", param="file")
    said: dict[str, Any] = {"filename": file.filename or None}
    expires: dict[str, Any] = {}
    for name, value in form.multi_items():
        if name.startswith(NESTED) and isinstance(value, str):
            key = name.removeprefix(NESTED).removesuffix("]")
            expires[key] = int(value) if value.isdecimal() else value
        elif name in ELSEWHERE:
            raise InvalidInput(f"{name}: a form has its content in file", param=name)
        elif name != "file":
            said[name] = value
    return Upload.of_body({**said, "expires_after": expires or None}), file


def _route(request: Request) -> Route | None:
    """Return the route of files that a request is for, if it is."""
    path: str = request.scope["path"]
    if "files" not in path and not path.endswith("/download"):
        return None
    method = "GET" if request.method == "HEAD" else request.method
    route = find(OpenAIJob(route=path, method=method))
    return route if route and route.method == method else None


def _wants_json(request: Request) -> bool:
    """Return whether a content is asked for as LLM Engine's client does."""
    basic = authorization(request.headers)[0] == "basic"
    return basic or "application/json" in request.headers.get("accept", "")


def route_of(request: Request) -> str:
    """Return the route of the job that a request becomes, with its query string."""
    # The path comes decoded, and a route is decoded again.
    path = request.scope["path"].replace("%", "%25").replace("?", "%3F")
    query = request.scope.get("query_string", b"").decode("latin-1")
    route = _route(request)
    if route is not None and route.path == CONTENT and _wants_json(request):
        query = f"{query}&format={LLM_ENGINE}"
    if route is not None and route.path == DOWNLOAD:
        query = f"{query}&{urlencode({BASE_URL: _base_url(request)})}"
    return f"{path}?{query}" if query else path


def _base_url(request: Request) -> str:
    """Return the address that the caller has of this server, also behind one that has the TLS."""
    scheme = request.headers.get("x-forwarded-proto", request.url.scheme)
    return str(request.base_url.replace(scheme=scheme))
