"""Transfers files over HTTP: uploads in forms, which don't fit into jobs, and contents as bytes."""

import asyncio
import base64
import codecs
import contextlib
import json
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse

from worker.dialects.llm_engine.models import BASE_URL_KEY, DOWNLOAD_PATH, FILE_PATH
from worker.dialects.openai.files import CONTENT_PATH, FILES_PATH, Upload, file_object
from worker.dialects.table import find_enabled_route
from worker.errors import InvalidInput, NoSuchObject, VolumeError, field_error
from worker.files import MEGABYTE, Files
from worker.job import OpenAIJob
from worker.routes.route import Route
from worker.serve.bodies import BodyReader
from worker.serve.keys import parse_authorization
from worker.settings import Settings
from worker.volume import adapters, translate_os_errors

FORM_TYPE = "multipart/form-data"
# Limits of a form: fields in addition to the file, bytes of each field, and bytes of everything
# except the file's content.
MAX_FIELDS = 8
MAX_FIELD_BYTES = 4_096
FORM_OVERHEAD_BYTES = 100_000
# Number of bytes that are copied at a time.
COPY_BYTES = 1_000_000
# Number of bytes that are encoded as JSON at a time; each connection has as many in memory, several
# times. It is divisible by three, so that parts in base64 can be joined.
JSON_BYTES = 49_152
BINARY_TYPE = "application/octet-stream"
JSON_TYPE = "application/json"
# Prefix of form fields that contain the keys of ``expires_after``.
EXPIRY_PREFIX = "expires_after["
# Fields of an upload that are allowed only in JSON bodies.
JSON_ONLY_FIELDS = ("content", "content_base64", "path")


class FileTransfers:
    """Answers requests whose bodies or responses are the contents of files."""

    def __init__(self, files: Files, settings: Settings) -> None:
        self._files = files
        self._settings = settings
        self._adapters = adapters.adapters_directory(settings.base_path)
        largest = settings.files_max_mb * MEGABYTE + FORM_OVERHEAD_BYTES
        # One file at a time is examined: others would only wait for the interpreter.
        self._examination = asyncio.Lock()
        self._bodies = BodyReader(largest, settings.serve_timeout_s, setting="FILES_MAX_MB")

    def find_transfer_route(self, request: Request) -> Route | None:
        """Return the route of a request for ``answer``; None if the request becomes a job."""
        route = self._find_file_route(request)
        if route is None:
            return None
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_form = route.path == FILES_PATH and route.method == "POST" and media_type == FORM_TYPE
        return route if is_form or route.path in {FILE_PATH, CONTENT_PATH} else None

    def to_job_route(self, request: Request) -> str:
        """Return the route of the job that a request becomes, with its query string."""
        # Encode the path: it is already decoded, and the job decodes its route again.
        path = request.scope["path"].replace("%", "%25").replace("?", "%3F")
        query = request.scope.get("query_string", b"").decode("latin-1")
        route = self._find_file_route(request)
        if route is not None and route.path == DOWNLOAD_PATH:
            # The server's URL as the caller sees it, also behind a proxy that terminates TLS.
            scheme = request.headers.get("x-forwarded-proto", request.url.scheme)
            url = str(request.base_url.replace(scheme=scheme))
            query = f"{query}&{urlencode({BASE_URL_KEY: url})}"
        return f"{path}?{query}" if query else path

    def _find_file_route(self, request: Request) -> Route | None:
        """Return the route of a request for files; None for others, and for disabled routes."""
        path: str = request.scope["path"]
        if "files" not in path and not path.endswith("/download"):
            return None
        method = "GET" if request.method == "HEAD" else request.method
        return find_enabled_route(OpenAIJob(route=path, method=method), self._settings)

    async def answer(self, request: Request, route: Route) -> Response:
        """Answer a request for which ``find_transfer_route`` has returned a route."""
        if route.path == FILES_PATH:
            return JSONResponse(await self._receive_upload(request))
        params = route.match_path(OpenAIJob(route=request.scope["path"]).path) or {}
        if route.path == FILE_PATH:
            return await asyncio.to_thread(self._adapter_response, params["name"], params["file"])
        # LLM Engine's client requests a content as JSON.
        scheme, _ = parse_authorization(request.headers)
        if scheme == "basic" or JSON_TYPE in request.headers.get("accept", ""):
            async with self._examination:
                return await asyncio.to_thread(self._json_response, params["id"])
        return await asyncio.to_thread(self._file_response, params["id"])

    async def _receive_upload(self, request: Request) -> dict[str, Any]:
        """Store a form's file on the volume; a large one is first in a temporary file."""
        async with contextlib.aclosing(self._bodies.read_chunks(request)) as parts:
            try:
                form = await _FormParser(request.headers, parts).parse()
            except MultiPartException as broken:
                raise InvalidInput(f"The form is refused: {broken.message}") from None
            except OSError as error:
                text = os.strerror(error.errno or 0)
                raise VolumeError(f"The worker's own disk fails: {text}.") from error
        try:
            upload, opened = _parse_upload(form)
            source = iter(lambda: opened.file.read(COPY_BYTES), b"")
            stored = await asyncio.to_thread(upload.receive, self._files, source)
        finally:
            await form.close()
        return file_object(stored)

    def _file_response(self, id: str) -> Response:
        file = self._files.get(id)
        path = self._files.content_path(file)
        with translate_os_errors():
            stat = path.stat()
        return FileResponse(path, media_type=BINARY_TYPE, filename=file.filename, stat_result=stat)

    def _json_response(self, id: str) -> Response:
        """Return a response with a file's content as JSON, in LLM Engine's format.

        The content is read while it is sent: a client may take its time, or never read it.
        """
        path = self._files.content_path(self._files.get(id))
        with translate_os_errors():
            is_text = _is_text(path)
        content = _encode_as_json(id, path, is_text=is_text)
        return StreamingResponse(content, media_type=JSON_TYPE)

    def _adapter_response(self, name: str, file: str) -> Response:
        location = self._files.volume.location
        path = adapters.adapter_file_paths(self._adapters, name, location).get(file)
        if path is None:
            raise NoSuchObject(f"The adapter {name!r} has no file {file!r}.")
        return FileResponse(path, media_type=BINARY_TYPE, filename=file)


class _FormParser(MultiPartParser):
    """Parses a form with a limited number of fields; refuses a form that breaks off."""

    def __init__(self, headers: Headers, parts: AsyncGenerator[bytes, None]) -> None:
        limits = {"max_files": 1, "max_fields": MAX_FIELDS, "max_part_size": MAX_FIELD_BYTES}
        super().__init__(headers, self._relay_whole_form(parts), **limits)
        self._ended = False

    def on_end(self) -> None:
        self._ended = True

    async def _relay_whole_form(
        self, parts: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        async for part in parts:
            yield part
        if not self._ended:
            raise MultiPartException("It breaks off before its end.")


def _parse_upload(form: FormData) -> tuple[Upload, UploadFile]:
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise field_error("file", "the form has no file with this name")
    fields: dict[str, Any] = {"filename": file.filename or None}
    expires: dict[str, Any] = {}
    for name, value in form.multi_items():
        if name.startswith(EXPIRY_PREFIX) and isinstance(value, str):
            key = name.removeprefix(EXPIRY_PREFIX).removesuffix("]")
            expires[key] = int(value) if value.isdecimal() else value
        elif name in JSON_ONLY_FIELDS:
            raise field_error(name, "a form has its content in file")
        elif name != "file":
            fields[name] = value
    return Upload.from_body({**fields, "expires_after": expires or None}), file


def _is_text(path: Path) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with path.open("rb") as file:
        try:
            while data := file.read(COPY_BYTES):
                decoder.decode(data)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True


async def _encode_as_json(id: str, path: Path, *, is_text: bool) -> AsyncGenerator[str, None]:
    """Yield an object with a file's content: the characters of a text, other bytes in base64."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    yield f'{{"id": {json.dumps(id)}, "content": "'
    with path.open("rb") as file:
        while part := await asyncio.to_thread(file.read, JSON_BYTES):
            if is_text:
                yield json.dumps(decoder.decode(part), ensure_ascii=False)[1:-1]
            else:
                yield base64.b64encode(part).decode()
    yield '"}'
