"""Forms (multipart/form-data) as OpenAI's and LLM Engine's clients upload files in them."""

import asyncio
import re
from collections.abc import AsyncIterable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from python_multipart import FormParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, create_form_parser

from llm_worker_client.mapping.errors import Refusal

MEDIA_TYPE = "multipart/form-data"
# The largest file that a job holds, as base64. What is larger is kept on the disk.
LARGEST_FILE = 14_000_000
_CONFIG = {"MAX_MEMORY_FILE_SIZE": LARGEST_FILE}
# Bytes that are written together: a thread for each of a network's parts would take longer.
_BLOCK = 2**20
# How forms spell the key of an object: expires_after[seconds].
_NESTED = re.compile(r"(\w+)\[(\w+)\]")


class Form:
    """A form that is read part by part. Leaving ``with`` removes its file from the disk.

    Args:
        content_type: with the boundary.

    Attributes:
        fields: by name.
        filename: of the file.

    Raises:
        Refusal: it is broken, or the disk is full.
    """

    def __init__(self, content_type: str) -> None:
        self.fields: dict[str, Any] = {}
        self.filename: str | None = None
        self._file: File | None = None
        self._ended = False
        headers = {"Content-Type": content_type.encode("latin-1")}
        try:
            self._parser: FormParser = create_form_parser(
                headers, self._on_field, self._on_file, _CONFIG
            )
        except (FormParserError, ValueError) as broken:
            raise _broken(broken) from None

    @property
    def size(self) -> int | None:
        """Bytes of the file; None: there is none."""
        return None if self._file is None else self._file.size

    @property
    def path(self) -> Path:
        """Where a file above ``LARGEST_FILE`` is."""
        assert self._file is not None
        assert self._file.actual_file_name is not None
        return Path(self._file.actual_file_name.decode())

    def content(self) -> bytes:
        assert self._file is not None
        self._file.file_object.seek(0)
        return self._file.file_object.read()

    def write(self, part: bytes) -> None:
        try:
            self._parser.write(part)
        except OSError as full:
            message = f"The upload can't be kept on this machine: {full.strerror or full}"
            raise Refusal(507, message) from None
        except (FormParserError, ValueError) as broken:
            raise _broken(broken) from None

    def end(self) -> None:
        self.write(b"")
        try:
            self._parser.finalize()
        except (FormParserError, ValueError) as broken:
            raise _broken(broken) from None
        self._ended = True

    def close(self) -> None:
        if not self._ended and self._parser.parser is not None:
            # Only so the parser hands over a file that has not come to its end, if there is one.
            with suppress(AssertionError, FormParserError, OSError, ValueError):
                self._parser.parser.callback("part_end")
            self._ended = True
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.close()

    def _on_field(self, field: Field) -> None:
        name, value = _text(field.field_name), _text(field.value)
        found = _NESTED.fullmatch(name)
        if not found:
            self.fields[name] = value
            return
        number = int(value) if value.isdecimal() else value
        self.fields.setdefault(found[1], {})[found[2]] = number

    def _on_file(self, file: File) -> None:
        if file.field_name != b"file":
            file.close()
            return
        if self._file is not None:
            self._file.close()
        self._file = file
        self.filename = None if file.file_name is None else _text(file.file_name)


def read(content_type: str, parts: Iterable[bytes]) -> Form:
    """Return a form that comes in parts, which the caller closes.

    Raises:
        Refusal: it is broken, or the disk is full.
    """
    form = Form(content_type)
    try:
        for part in parts:
            form.write(part)
        form.end()
    except BaseException:
        form.close()
        raise
    return form


async def aread(content_type: str, parts: AsyncIterable[bytes]) -> Form:
    """As ``read``, with asyncio: threads write to the disk."""
    form, block = Form(content_type), bytearray()
    try:
        async for part in parts:
            block += part
            if len(block) >= _BLOCK:
                await asyncio.to_thread(form.write, bytes(block))
                block.clear()
        await asyncio.to_thread(form.write, bytes(block))
        await asyncio.to_thread(form.end)
    except BaseException:
        form.close()
        raise
    return form


def _broken(error: Exception) -> Refusal:
    return Refusal(400, f"The form is broken: {error}")


def _text(part: bytes | None) -> str:
    return (part or b"").decode()
