"""Reads forms (multipart/form-data) in which OpenAI's and LLM Engine's clients upload files."""

import asyncio
import re
from collections.abc import AsyncIterable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, MultipartParser, parse_options_header

from llm_worker_client.mapping.responses import Refusal

MEDIA_TYPE = "multipart/form-data"
# Maximum bytes of a file in a job, which contains it as base64. Larger files are stored on disk.
MAX_FILE_BYTES = 14_000_000
# Maximum number of parts, and maximum bytes of each part that is no file and stays in memory.
MAX_PARTS = 9
MAX_FIELD_BYTES = 4_096
_FILE_CONFIG: Any = {"MAX_MEMORY_FILE_SIZE": MAX_FILE_BYTES}
# Transfer encodings that leave the content unchanged. RFC 7578 allows no others.
_UNENCODED = (b"binary", b"8bit", b"7bit")
# Bytes that each call in a thread parses; a call for each part from the network would be slower.
_BLOCK_BYTES = 2**20
# Forms write the key of a nested object like this: expires_after[seconds].
_NESTED_KEY = re.compile(r"(\w+)\[(\w+)\]")


class Form:
    """A form that is parsed incrementally; leaving its ``with`` block deletes the temporary file.

    In ``fields``, ``a[b]`` becomes the key ``b`` in a dict ``a``. Without a file, ``filename`` is
    None.
    """

    def __init__(self, content_type: str) -> None:
        self.fields: dict[str, Any] = {}
        self.filename: str | None = None
        self._file: File | None = None
        # The current part; None if the part is ignored.
        self._part: Field | File | None = None
        self._part_size = 0
        self._headers: dict[bytes, bytes] = {}
        self._header, self._value = bytearray(), bytearray()
        self._part_count = 0
        self._is_complete = False
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        if not boundary:
            raise _form_error(FormParserError("its type names no boundary"))
        callbacks: Any = {
            "on_part_begin": self._on_part_begin,
            "on_header_field": lambda data, *ends: self._header.extend(data[slice(*ends)]),
            "on_header_value": lambda data, *ends: self._value.extend(data[slice(*ends)]),
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers_finished,
            "on_part_data": self._on_part_data,
            "on_part_end": self._on_part_end,
            "on_end": self._on_end,
        }
        try:
            self._parser = MultipartParser(boundary, callbacks)
        except ValueError as error:
            raise _form_error(error) from None

    @property
    def file_size(self) -> int | None:
        """Size of the file in bytes; None if the form has no file."""
        return None if self._file is None else self._file.size

    @property
    def has_large_file(self) -> bool:
        """Whether the file is too large for a job; it is then stored at ``file_path``."""
        return (self.file_size or 0) > MAX_FILE_BYTES

    @property
    def file_path(self) -> Path:
        assert self._file is not None
        assert self._file.actual_file_name is not None
        return Path(self._file.actual_file_name.decode())

    def read_file_content(self) -> bytes:
        assert self._file is not None
        self._file.file_object.seek(0)
        return self._file.file_object.read()

    def feed(self, part: bytes) -> None:
        try:
            self._parser.write(part)
        except OSError as error:
            message = f"The upload can't be stored on this machine: {error.strerror or error}"
            raise Refusal(507, message) from None
        except ValueError as error:
            raise _form_error(error) from None

    def finish(self) -> None:
        self.feed(b"")
        if not self._is_complete:
            raise _form_error(FormParserError("it breaks off before its end"))

    def close(self) -> None:
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

    def _on_part_begin(self) -> None:
        self._part_count += 1
        if self._part_count > MAX_PARTS:
            raise FormParserError(f"it has more than {MAX_PARTS} parts")
        self._headers, self._part_size = {}, 0

    def _on_header_end(self) -> None:
        self._headers[bytes(self._header).lower()] = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _on_headers_finished(self) -> None:
        encoding = self._headers.get(b"content-transfer-encoding", b"binary").strip().lower()
        if encoding not in _UNENCODED:
            raise FormParserError(f"a part is encoded as {encoding.decode()}")
        options = parse_options_header(self._headers.get(b"content-disposition"))[1]
        name, filename = options.get(b"name"), options.get(b"filename")
        if name is None:
            raise FormParserError("a part has no name")
        self._part = None
        if filename is None:
            self._part = Field(name)
        elif name == b"file":
            self.close()
            self._part = self._file = File(filename, name, _FILE_CONFIG)
            self.filename = filename.decode()

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._part_size += end - start
        if isinstance(self._part, Field) and self._part_size > MAX_FIELD_BYTES:
            raise FormParserError(f"a field has more than {MAX_FIELD_BYTES:,} bytes")
        if self._part is not None:
            self._part.write(data[start:end])

    def _on_part_end(self) -> None:
        if self._part is not None:
            self._part.finalize()
        if not isinstance(self._part, Field):
            return
        name, text = (self._part.field_name or b"").decode(), (self._part.value or b"").decode()
        target: Any = self.fields
        key, value = name, cast("str | int", text)
        if match := _NESTED_KEY.fullmatch(name):
            target, key = self.fields.setdefault(match[1], {}), match[2]
            value = int(text) if text.isdecimal() else text
        if not isinstance(target, dict) or isinstance(target.get(key), dict):
            raise FormParserError(f"{name} is both a value and an object")
        target[key] = value

    def _on_end(self) -> None:
        self._is_complete = True


def parse_form(content_type: str, parts: Iterable[bytes]) -> Form:
    """Parse the parts of a body as a form, which the caller must close."""
    form = Form(content_type)
    try:
        for part in parts:
            form.feed(part)
        form.finish()
    except BaseException:
        form.close()
        raise
    return form


async def aparse_form(content_type: str, parts: AsyncIterable[bytes]) -> Form:
    """Parse a form as ``parse_form`` does, but write to the disk in threads."""
    form, block = Form(content_type), bytearray()
    try:
        async for part in parts:
            block += part
            if len(block) >= _BLOCK_BYTES:
                await asyncio.to_thread(form.feed, bytes(block))
                block.clear()
        await asyncio.to_thread(form.feed, bytes(block))
        await asyncio.to_thread(form.finish)
    except BaseException:
        form.close()
        raise
    return form


def _form_error(error: Exception) -> Refusal:
    return Refusal(400, f"The form is broken: {error}")
