"""Files of the endpoint's volume, with LLM Engine's names."""

from io import BufferedReader
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2

from llm_worker_client.llm_engine import connection
from llm_worker_client.llm_engine.endpoint_types import (
    DeleteFileResponse,
    GetFileContentResponse,
    GetFileResponse,
    ListFilesResponse,
    UploadFileResponse,
)
from llm_worker_client.mapping import forms

FILES = "/v1/files"
FILE = "file"


class File:
    """Files that batches and fine-tunes read. Errors are those of ``Completion.create``."""

    @classmethod
    def upload(cls, file: BufferedReader) -> UploadFileResponse:
        """Upload an open file, be it opened as text or as bytes.

        One above 14 MB goes to the volume, if the environment names it (RUNPOD_VOLUME_ID, …).
        """
        # What is open in memory has no name.
        name = Path(str(getattr(file, "name", FILE))).name
        # Only its body is used: the form that the mapping reads.
        made: Any = httpx2.Request("POST", "http://form", files={FILE: (name, _content(file))})
        with forms.read(made.headers["content-type"], made.stream) as form:
            answer = connection.call(connection.form(FILES, form))
        return UploadFileResponse.model_validate(answer)

    @classmethod
    def get(cls, file_id: str) -> GetFileResponse:
        """Return the name and the size of a file."""
        found = connection.call(connection.bare("GET", _of(file_id)))
        return GetFileResponse.model_validate(found)

    @classmethod
    def download(cls, file_id: str) -> GetFileContentResponse:
        """Return the text of a file."""
        found = connection.call(connection.bare("GET", f"{_of(file_id)}/content"))
        return GetFileContentResponse.model_validate(found)

    @classmethod
    def list(cls) -> ListFilesResponse:
        """Return all files."""
        return ListFilesResponse.model_validate(connection.call(connection.bare("GET", FILES)))

    @classmethod
    def delete(cls, file_id: str) -> DeleteFileResponse:
        """Delete a file."""
        deleted = connection.call(connection.bare("DELETE", _of(file_id)))
        return DeleteFileResponse.model_validate(deleted)


def _content(file: BufferedReader) -> BufferedReader | bytes:
    """Return what is left of a file; a large one is read later, part by part."""
    if isinstance(file, BufferedReader) and file.seekable() and file.tell() == 0:
        return file
    content: str | bytes = file.read()
    return content.encode() if isinstance(content, str) else content


def _of(file_id: str) -> str:
    return f"{FILES}/{quote(file_id, safe='')}"
