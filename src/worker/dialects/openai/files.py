"""OpenAI's routes for files; responses also have LLM Engine's keys.

Over HTTP, ``worker.serve`` accepts uploads as forms and returns contents as bytes.
"""

import asyncio
import base64
import contextlib
from collections.abc import AsyncGenerator, Iterable, Iterator
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from worker.chunking import PIECES_LIMIT_BYTES
from worker.dialects.openai.listing import PageQuery, make_list_object
from worker.errors import AnswerTooLarge, InvalidInput, field_error
from worker.files import DEFAULT_PURPOSE, FILE_PREFIX, Files, Purpose, StoredFile
from worker.job.batch import ExpiresAfter
from worker.routes.answer import json_size
from worker.routes.kinds import input_file_ids_in_use
from worker.routes.route import RouteRequest
from worker.validation import QueryModel, StrictModel, Text, name_field_in_errors
from worker.volume import translate_os_errors

# Maximum bytes of a file in a response, and of a range of a file, which is sent as base64: the
# platform stores no larger results.
MAX_CONTENT_BYTES = 20_000_000
MAX_RANGE_BYTES = 14_000_000
# Bytes in one part of a binary file. As base64, a part fits a yield. The number is divisible by
# three, so that only the last part has padding and the parts can be joined.
PART_BYTES = 600_000

FILES_PATH = "/v1/files"
CONTENT_PATH = "/v1/files/{id}/content"


class ByteRange(QueryModel):
    """The range of a file's bytes that a job requests; the whole file if no field is set."""

    offset: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1, le=MAX_RANGE_BYTES)] = MAX_RANGE_BYTES


class Upload(StrictModel):
    """The metadata of an uploaded file, and its content or path unless it arrives in a form."""

    purpose: Purpose = DEFAULT_PURPOSE
    filename: Annotated[Text, Field(min_length=1, max_length=255)] | None = None
    expires_after: ExpiresAfter | None = None
    content: Text | None = None
    content_base64: Text | None = None
    path: Text | None = None

    @property
    def expires_after_s(self) -> int | None:
        return self.expires_after.seconds if self.expires_after else None

    def receive(self, files: Files, source: Iterable[bytes], id: str | None = None) -> StoredFile:
        """Store the file, whose content comes in chunks from ``source``; see ``Files.receive``."""
        return files.receive(
            source,
            filename=self.filename or "upload",
            purpose=self.purpose,
            expires_after_s=self.expires_after_s,
            id=id,
        )


async def create(request: RouteRequest) -> dict[str, Any]:
    """Store a file: its content as text or base64, or a path on the volume."""
    return file_object(await asyncio.to_thread(_store_upload, request))


async def list_files(request: RouteRequest) -> dict[str, Any]:
    """List files, one page at a time."""
    page_query = PageQuery.from_query(request.job.query_params)
    files = request.resources.batches.files
    page = await asyncio.to_thread(partial(files.list, **page_query.model_dump()))
    response = make_list_object(page, file_object)
    names = ("id", "filename", "size")
    llm_engine_files = [{name: file[name] for name in names} for file in response["data"]]
    return response | {"files": llm_engine_files}


async def retrieve(request: RouteRequest) -> dict[str, Any]:
    """Describe a file."""
    files = request.resources.batches.files
    return file_object(await asyncio.to_thread(files.get, request.path_params["id"]))


async def delete(request: RouteRequest) -> dict[str, Any]:
    """Delete a file."""
    id, files = request.path_params["id"], request.resources.batches.files

    def delete_unless_used() -> None:
        files.delete(id, in_use=input_file_ids_in_use(request.settings))

    await asyncio.to_thread(delete_unless_used)
    return {"id": id, "object": "file", "deleted": True}


async def read_content(request: RouteRequest) -> AsyncGenerator[Any, None]:
    """Return the content of a file in parts below 1 MB: as text, or as base64 if it is binary.

    With ``offset`` and ``limit`` in the query string, only this range is returned, as base64.
    """
    for part in await asyncio.to_thread(_read_content_parts, request):
        yield part


def _store_upload(request: RouteRequest) -> StoredFile:
    upload = Upload.from_body(request.body)
    if len({"content", "content_base64", "path"} & upload.model_fields_set) != 1:
        raise InvalidInput("content, content_base64 or path: exactly one of them", param="content")
    files = request.resources.batches.files
    # The id is derived so that a retried job finds the file of its first attempt.
    id = files.volume.location.derive_id(FILE_PREFIX, request.request_id, upload.model_dump_json())
    if upload.path is not None:
        with name_field_in_errors("path"):
            return files.add_volume_file(
                upload.path,
                purpose=upload.purpose,
                filename=upload.filename,
                expires_after_s=upload.expires_after_s,
                id=id,
            )
    content = (upload.content or "").encode()
    if upload.content_base64 is not None:
        try:
            content = base64.b64decode(upload.content_base64, validate=True)
        except ValueError:
            raise field_error("content_base64", "this is not valid base64") from None
    return upload.receive(files, [content], id)


def _read_content_parts(request: RouteRequest) -> list[Any]:
    files = request.resources.batches.files
    file = files.get(request.path_params["id"])
    path = files.content_path(file)
    byte_range = ByteRange.from_query(request.job.query_params)
    if byte_range.model_fields_set:
        with translate_os_errors(), path.open("rb") as opened_file:
            opened_file.seek(byte_range.offset)
            return _make_base64_parts(opened_file.read(byte_range.limit))
    if file.bytes > MAX_CONTENT_BYTES:
        key = file.path or f"worker/files/{file.id}/content"
        raise AnswerTooLarge(
            f"The file has {file.bytes:,} bytes, more than the {MAX_CONTENT_BYTES:,} of an answer: "
            "ask for parts of it (offset, limit), or read it by the S3 API of the network volume, "
            f"where its key is {key}."
        )
    data = path.read_bytes()
    with contextlib.suppress(UnicodeDecodeError):
        return [*_split_text(data.decode())]
    return _make_base64_parts(data)


def _split_text(text: str) -> Iterator[str]:
    """Split a text between characters into parts that fit a yield."""
    if json_size(text) <= PIECES_LIMIT_BYTES:
        yield text
        return
    middle = len(text) // 2
    yield from _split_text(text[:middle])
    yield from _split_text(text[middle:])


def _make_base64_parts(data: bytes) -> list[Any]:
    """Cut bytes into parts that fit a yield. Empty bytes make one empty part."""
    starts = range(0, max(1, len(data)), PART_BYTES)
    return [
        {"content_base64": base64.b64encode(data[start : start + PART_BYTES]).decode()}
        for start in starts
    ]


def file_object(stored_file: StoredFile) -> dict[str, Any]:
    """Return a file object, which also has the size under LLM Engine's name."""
    return {
        "id": stored_file.id,
        "object": "file",
        "bytes": stored_file.bytes,
        "size": stored_file.bytes,
        "created_at": stored_file.created_at,
        "expires_at": stored_file.expires_at,
        "filename": stored_file.filename,
        "purpose": stored_file.purpose,
        "status": "processed",
    }
