"""Forms (multipart/form-data) as OpenAI's and LLM Engine's clients upload files in them."""

import asyncio
import re
from collections.abc import AsyncIterable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, MultipartParser, parse_options_header

from llm_worker_client.mapping.errors import Refusal

MEDIA_TYPE = "multipart/form-data"
# The largest file that a job holds, as base64. What is larger is kept on the disk.
LARGEST_FILE = 14_000_000
# The parts of a form, and bytes of each besides the file: all of these are held in memory.
MOST_PARTS = 9
LARGEST_FIELD = 4_096
_CONFIG: Any = {"MAX_MEMORY_FILE_SIZE": LARGEST_FILE}
# How parts are encoded where that changes nothing. RFC 7578 knows no other way.
_AS_THEY_ARE = (b"binary", b"8bit", b"7bit")
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
        # Of the part that is read; None: of no interest.
        self._part: Field | File | None = None
        self._part_size = 0
        self._headers: dict[bytes, bytes] = {}
        self._header, self._value = bytearray(), bytearray()
        self._parts = 0
        self._ended = False
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        if not boundary:
            raise _broken(FormParserError("its type names no boundary"))
        try:
            self._parser = MultipartParser(boundary, self._callbacks())
        except ValueError as broken:
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
        except ValueError as broken:
            raise _broken(broken) from None

    def end(self) -> None:
        self.write(b"")
        if not self._ended:
            raise _broken(FormParserError("it breaks off before its end"))

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

    def _callbacks(self) -> Any:
        return {
            "on_part_begin": self._on_part_begin,
            "on_header_field": lambda data, *ends: self._header.extend(data[slice(*ends)]),
            "on_header_value": lambda data, *ends: self._value.extend(data[slice(*ends)]),
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers,
            "on_part_data": self._on_part_data,
            "on_part_end": self._on_part_end,
            "on_end": self._on_end,
        }

    def _on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise FormParserError(f"it has more than {MOST_PARTS} parts")
        self._headers, self._part_size = {}, 0

    def _on_header_end(self) -> None:
        self._headers[bytes(self._header).lower()] = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _on_headers(self) -> None:
        encoding = self._headers.get(b"content-transfer-encoding", b"binary").strip().lower()
        if encoding not in _AS_THEY_ARE:
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
            self._part = self._file = File(filename, name, _CONFIG)
            self.filename = filename.decode()

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._part_size += end - start
        if isinstance(self._part, Field) and self._part_size > LARGEST_FIELD:
            raise FormParserError(f"a field has more than {LARGEST_FIELD:,} bytes")
        if self._part is not None:
            self._part.write(data[start:end])

    def _on_part_end(self) -> None:
        if self._part is not None:
            self._part.finalize()
        if isinstance(self._part, Field):
            self._add(_text(self._part.field_name), _text(self._part.value))

    def _add(self, name: str, text: str) -> None:
        place: Any = self.fields
        key, value = name, cast("str | int", text)
        if found := _NESTED.fullmatch(name):
            place, key = self.fields.setdefault(found[1], {}), found[2]
            value = int(text) if text.isdecimal() else text
        if not isinstance(place, dict) or isinstance(place.get(key), dict):
            raise FormParserError(f"{name} is both a value and an object")
        place[key] = value

    def _on_end(self) -> None:
        self._ended = True


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
