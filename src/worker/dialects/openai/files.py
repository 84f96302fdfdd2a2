"""OpenAI's files, with LLM Engine's keys beside OpenAI's.

Over HTTP, ``worker.serve`` takes uploads in forms and answers contents as bytes.
"""

import asyncio
import base64
import contextlib
from collections.abc import AsyncGenerator, Iterable
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from worker.dialects.openai import objects
from worker.dialects.openai.listing import PageQuery, list_object
from worker.errors import AnswerTooLarge, InvalidInput
from worker.files import PREFIX, Files, StoredFile
from worker.files.stored import PURPOSE, Purpose
from worker.job.batch import ExpiresAfter
from worker.long_work.kinds import inputs_in_use
from worker.routes.answer import text_parts
from worker.routes.route import Asked
from worker.validation import Query, Strict, Text, of_field
from worker.volume import failures, ids

# Bytes of a content that a job answers, and of a range of one, which is base64: the platform
# keeps no larger results.
LARGEST = 20_000_000
LARGEST_RANGE = 14_000_000
# Bytes in one part of a content that is no text: as base64 fewer than a yield holds, and without
# padding but at the end, so that the parts can be joined.
PART = 600_000
LLM_ENGINE = "llm_engine"

FILES = "/v1/files"
CONTENT = "/v1/files/{id}/content"


class ByteRange(Query):
    """The part of a content that a job asks for, in bytes; without a field all of it."""

    offset: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1, le=LARGEST_RANGE)] = LARGEST_RANGE


class Upload(Strict):
    """What is said of a file that is uploaded, and its content if that is no form's file."""

    purpose: Purpose = PURPOSE
    filename: Annotated[Text, Field(min_length=1, max_length=255)] | None = None
    expires_after: ExpiresAfter | None = None
    content: Text | None = None
    content_base64: Text | None = None
    path: Text | None = None

    @property
    def expires_after_s(self) -> int | None:
        return self.expires_after.seconds if self.expires_after else None

    def receive(self, files: Files, source: Iterable[bytes], id: str | None = None) -> StoredFile:
        """Keep a content that came in parts; see ``Files.receive``."""
        return files.receive(
            source,
            filename=self.filename or "upload",
            purpose=self.purpose,
            expires_after_s=self.expires_after_s,
            id=id,
        )


async def create(asked: Asked) -> dict[str, Any]:
    """Keep a file: its content as text or base64, or where it lies on the volume.

    Raises:
        RequestError: it is refused.
    """
    return objects.file(await asyncio.to_thread(_create, asked))


async def list_files(asked: Asked) -> dict[str, Any]:
    """List files, a page at a time."""
    listing = PageQuery.read(asked.job.query)
    files = asked.resources.batches.files
    page = await asyncio.to_thread(partial(files.list, **listing.model_dump()))
    found = list_object(page, objects.file)
    names = ("id", "filename", "size")
    llm_engines = [{name: file[name] for name in names} for file in found["data"]]
    return found | {"files": llm_engines}


async def retrieve(asked: Asked) -> dict[str, Any]:
    """Describe a file.

    Raises:
        NoSuchObject: there is none.
    """
    files = asked.resources.batches.files
    return objects.file(await asyncio.to_thread(files.get, asked.parameters["id"]))


async def delete(asked: Asked) -> dict[str, Any]:
    """Delete a file.

    Raises:
        NoSuchObject: there is none.
        Conflict: a batch or a fine-tune uses it.
    """
    id, files = asked.parameters["id"], asked.resources.batches.files

    def delete_unless_used() -> None:
        files.delete(id, in_use=inputs_in_use(asked.settings))

    await asyncio.to_thread(delete_unless_used)
    return {"id": id, "object": "file", "deleted": True}


async def read_content(asked: Asked) -> AsyncGenerator[Any, None]:
    """Return the content of a file: text, or base64 where it is none, in parts below 1 MB.

    With ``offset`` and ``limit``, bytes, in the query string it is base64 of that range.

    Raises:
        NoSuchObject: there is no such file.
        AnswerTooLarge: its content is too large for a job.
        InvalidInput: the range is none.
    """
    for part in await asyncio.to_thread(_content_parts, asked):
        yield part


def _create(asked: Asked) -> StoredFile:
    upload = Upload.of_body(asked.body)
    if len({"content", "content_base64", "path"} & upload.model_fields_set) != 1:
        raise InvalidInput("content, content_base64 or path: exactly one of them", param="content")
    files = asked.resources.batches.files
    # A job that is tried again finds the file of its first attempt.
    id = ids.derived(PREFIX, asked.request_id, upload.model_dump_json())
    if upload.path is not None:
        with of_field("path"):
            return files.refer(
                upload.path,
                purpose=upload.purpose,
                filename=upload.filename,
                expires_after_s=upload.expires_after_s,
                id=id,
            )
    return upload.receive(files, [_bytes(upload)], id)


def _bytes(upload: Upload) -> bytes:
    try:
        if upload.content_base64 is not None:
            return base64.b64decode(upload.content_base64, validate=True)
    except ValueError:
        raise InvalidInput("content_base64: this is no base64", param="content_base64") from None
    return (upload.content or "").encode()


def _content_parts(asked: Asked) -> list[Any]:
    files = asked.resources.batches.files
    file = files.get(asked.parameters["id"])
    place = files.content(file)
    part = ByteRange.read(asked.job.query)
    if part.model_fields_set:
        with failures(), place.open("rb") as opened:
            opened.seek(part.offset)
            return _base64(opened.read(part.limit))
    if file.bytes > LARGEST:
        key = file.path or f"worker/files/{file.id}/content"
        raise AnswerTooLarge(
            f"The file has {file.bytes:,} bytes, and a job answers {LARGEST:,}: "
            "ask for parts of it (offset, limit), or read it by the S3 API of the network volume, "
            f"where its key is {key}."
        )
    found = place.read_bytes()
    text: str | None = None
    with contextlib.suppress(UnicodeDecodeError):
        text = found.decode()
    if asked.job.query.get("format") == LLM_ENGINE:
        content = base64.b64encode(found).decode() if text is None else text
        return [{"id": file.id, "content": content}]
    return _base64(found) if text is None else [*text_parts(text)]


def _base64(found: bytes) -> list[Any]:
    """Cut bytes into parts that a yield holds; of none there is one."""
    starts = range(0, max(1, len(found)), PART)
    return [
        {"content_base64": base64.b64encode(found[start : start + PART]).decode()}
        for start in starts
    ]
