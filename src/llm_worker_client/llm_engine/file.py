"""LLM Engine's class ``File``, for the files on an endpoint's volume."""

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

FILES_PATH = "/v1/files"


class File:
    """The files that batches and fine-tunes read. Errors are those of ``Completion.create``."""

    @classmethod
    def upload(cls, file: BufferedReader) -> UploadFileResponse:
        """Upload a file that is open in text or binary mode.

        Files above 14 MB need the volume's options in the environment, such as RUNPOD_VOLUME_ID.
        """
        # A file in memory has no name and is uploaded as "file".
        name = Path(str(getattr(file, "name", "file"))).name
        response = call("POST", FILES_PATH, files={"file": (name, _unread_content(file))})
        return UploadFileResponse.model_validate(response)

    @classmethod
    def get(cls, file_id: str) -> GetFileResponse:
        """Return the name and the size of a file."""
        return GetFileResponse.model_validate(call("GET", _file_url(file_id)))

    @classmethod
    def download(cls, file_id: str) -> GetFileContentResponse:
        """Return the text of a file."""
        return GetFileContentResponse.model_validate(call("GET", f"{_file_url(file_id)}/content"))

    @classmethod
    def list(cls) -> ListFilesResponse:
        """Return all files."""
        return ListFilesResponse.model_validate(call("GET", FILES_PATH))

    @classmethod
    def delete(cls, file_id: str) -> DeleteFileResponse:
        """Delete a file."""
        return DeleteFileResponse.model_validate(call("DELETE", _file_url(file_id)))


def _unread_content(file: BufferedReader) -> BufferedReader | bytes:
    """Return the remaining bytes, or an unread binary file itself, which is sent in parts."""
    if isinstance(file, BufferedReader) and file.seekable() and file.tell() == 0:
        return file
    content: str | bytes = file.read()
    return content.encode() if isinstance(content, str) else content


def _file_url(file_id: str) -> str:
    return f"{FILES_PATH}/{quote(file_id, safe='')}"
