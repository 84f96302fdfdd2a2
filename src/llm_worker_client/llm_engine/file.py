"""Files of the endpoint's volume, with LLM Engine's names."""

from io import BufferedReader
from pathlib import Path
from urllib.parse import quote

from llm_worker_client.llm_engine.connection import call
from llm_worker_client.llm_engine.data_types import (
    DeleteFileResponse,
    GetFileContentResponse,
    GetFileResponse,
    ListFilesResponse,
    UploadFileResponse,
)

FILES = "/v1/files"


class File:
    """Files that batches and fine-tunes read. Errors are those of ``Completion.create``."""

    @classmethod
    def upload(cls, file: BufferedReader) -> UploadFileResponse:
        """Upload an open file, be it opened as text or as bytes.

        One above 14 MB goes to the volume, if the environment names it (RUNPOD_VOLUME_ID, …).
        """
        # What is open in memory has no name.
        name = Path(str(getattr(file, "name", "file"))).name
        uploaded = call("POST", FILES, files={"file": (name, _content(file))})
        return UploadFileResponse.model_validate(uploaded)

    @classmethod
    def get(cls, file_id: str) -> GetFileResponse:
        """Return the name and the size of a file."""
        return GetFileResponse.model_validate(call("GET", _path(file_id)))

    @classmethod
    def download(cls, file_id: str) -> GetFileContentResponse:
        """Return the text of a file."""
        return GetFileContentResponse.model_validate(call("GET", f"{_path(file_id)}/content"))

    @classmethod
    def list(cls) -> ListFilesResponse:
        """Return all files."""
        return ListFilesResponse.model_validate(call("GET", FILES))

    @classmethod
    def delete(cls, file_id: str) -> DeleteFileResponse:
        """Delete a file."""
        return DeleteFileResponse.model_validate(call("DELETE", _path(file_id)))


def _content(file: BufferedReader) -> BufferedReader | bytes:
    """Return what is left of a file; a large one is read later, part by part."""
    if isinstance(file, BufferedReader) and file.seekable() and file.tell() == 0:
        return file
    content: str | bytes = file.read()
    return content.encode() if isinstance(content, str) else content


def _path(file_id: str) -> str:
    return f"{FILES}/{quote(file_id, safe='')}"
