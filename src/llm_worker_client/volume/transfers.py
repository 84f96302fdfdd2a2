"""Uploads, downloads, lists and deletes the files of a network volume."""

import errno
import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from llm_worker_client import account
from llm_worker_client.volume.download import download, read_block
from llm_worker_client.volume.errors import NoSpace, NoSuchFile, VolumeError, VolumeNotConfigured
from llm_worker_client.volume.local_file import DEFAULT_PART_SIZE, MAX_PART_SIZE, LocalFileState
from llm_worker_client.volume.progress import Progress
from llm_worker_client.volume.s3 import S3Api, VolumeFile
from llm_worker_client.volume.upload import Upload, UploadResult

_URL_TEMPLATE = "https://s3api-{}.runpod.io/"
_DATACENTER = re.compile(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)+")


class Volume:
    """A network volume. Options that are not passed are read from the environment.

    Methods raise ``VolumeError`` on failure; its message is for the user, without secrets.

    Args:
        id: The id of the volume. Default: RUNPOD_VOLUME_ID.
        datacenter: The volume's data center, such as "EU-RO-1". Default: RUNPOD_VOLUME_DATACENTER.
        access_key: The access key of an S3 API key, "user_…". Default: AWS_ACCESS_KEY_ID.
        secret: The secret of the same S3 API key, "rps_…". Default: AWS_SECRET_ACCESS_KEY.
        url: The URL of another S3 API than the platform's. Default: RUNPOD_VOLUME_URL.
        part_size: Size in bytes of the parts in which files are uploaded.

    Raises:
        VolumeNotConfigured: If an option is missing, or the data center's name is malformed.
        ValueError: If the part size is outside the platform's limits.
    """

    def __init__(
        self,
        id: str | None = None,
        datacenter: str | None = None,
        *,
        access_key: str | None = None,
        secret: str | None = None,
        url: str | None = None,
        part_size: int = DEFAULT_PART_SIZE,
    ) -> None:
        if not 0 < part_size <= MAX_PART_SIZE:
            raise ValueError(f"part_size: 1 to {MAX_PART_SIZE:,}, not {part_size}")
        arguments = {
            account.VOLUME_ID_VARIABLE: id,
            account.VOLUME_DATACENTER_VARIABLE: datacenter,
            account.VOLUME_URL_VARIABLE: url,
            account.S3_KEY_VARIABLE: access_key,
            account.S3_SECRET_VARIABLE: secret,
        }
        configured = {variable: value for variable, value in arguments.items() if value}
        self._s3 = _open_s3(account.volume_variables() | configured)
        self._part_size = part_size

    def upload(
        self,
        path: str | Path,
        key: str,
        *,
        progress: bool = False,
        stop: threading.Event | None = None,
    ) -> UploadResult:
        """Upload a local file, which appears on the volume only when it is complete.

        Bytes of the same file or of an unfinished upload on the volume are not sent again.

        Args:
            path: The path of the local file.
            key: The path on the volume, from its root.
            progress: Whether to draw a progress bar on a terminal.
            stop: Set by another thread to stop the upload.

        Raises:
            VolumeError: If the upload failed. Another call resumes it.
        """
        path, key = Path(path), _validate_file_key(key)
        with _translate_local_errors(path), self._s3.stoppable_transfer(stop):
            file = LocalFileState.from_path(path, self._part_size)
            with Progress(file.size, path.name, visible=progress) as progress_bar:
                return Upload(self._s3, key, file, progress_bar).send()

    def upload_by_digest(self, path: Path, name: str | None, stop: threading.Event) -> str:
        """Upload a file, with its digest and its name's extension as the key; return the key.

        The same file is therefore sent only once, and an interrupted upload is resumed.
        """
        suffix = re.search(r"\.[A-Za-z0-9]{1,8}\Z", name or "")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        key = f"uploads/{digest}{suffix[0] if suffix else ''}"
        return self.upload(path, key, stop=stop).key

    def download(self, key: str, path: str | Path, *, progress: bool = False) -> VolumeFile:
        """Download a file to a local path, where it appears only when it is complete.

        Args:
            key: The path on the volume.
            path: The path of the local file. An existing file is replaced.
            progress: Whether to draw a progress bar on a terminal.

        Raises:
            NoSuchFile: If the volume has no such file.
            VolumeError: If the download failed. Another call resumes it.
        """
        path, key = Path(path), _validate_file_key(key)
        with _translate_local_errors(path), self._s3.stoppable_transfer():
            if (file := self._s3.find_file(key)) is None:
                raise NoSuchFile(f"There is no {key} on the volume.")
            with Progress(file.size, path.name, visible=progress) as progress_bar:
                download(self._s3, file, path, progress_bar, self._part_size)
        return file

    def read(self, file: VolumeFile) -> Iterator[bytes]:
        """Yield the content of a file in blocks, up to the size that it had when it was listed.

        The file may be appended to meanwhile.

        Raises:
            VolumeError: If the file can't be read.
        """
        for offset in range(0, file.size, self._part_size):
            with self._s3.stoppable_transfer():
                block = read_block(self._s3, file, offset, min(self._part_size, file.size - offset))
            yield block

    def list(self, prefix: str = "") -> Iterator[VolumeFile]:
        """Yield the files whose keys begin with a prefix."""
        with self._s3.stoppable_transfer():
            files = [*self._s3.list_files(prefix)]
        yield from files

    def delete(self, key: str) -> None:
        """Delete a file and the parts of its unfinished uploads.

        Raises:
            NoSuchFile: If there is neither a file nor an unfinished upload.
        """
        key = _validate_file_key(key)
        with self._s3.stoppable_transfer():
            unfinished = self._s3.unfinished_upload_ids(key)
            for upload_id in unfinished:
                self._s3.abort_upload(key, upload_id)
            if self._s3.find_file(key) is not None:
                self._s3.delete_file(key)
            elif not unfinished:
                raise NoSuchFile(f"There is no {key} on the volume.")

    def close(self) -> None:
        self._s3.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _validate_file_key(key: str) -> str:
    """Return the key if it is a valid path on the volume; raise ``VolumeError`` otherwise."""
    parts = key.split("/")
    if not all(parts) or {".", ".."} & set(parts) or "\0" in key:
        raise VolumeError(f"{key!r} is no path of a file from the volume's root, such as inbox/a.")
    return key


@contextmanager
def _translate_local_errors(path: Path) -> Iterator[None]:
    """Raise errors of a local file as ``VolumeError``."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"There is no space left for {path}; what has come is kept: start again."
            raise NoSpace(message) from None
        raise VolumeError(f"{path}: {error.strerror or type(error).__name__}") from None


def _open_s3(variables: dict[str, str]) -> S3Api:
    """Return a client for the S3 API of the volume that the variables describe."""
    required = [account.VOLUME_ID_VARIABLE, account.S3_KEY_VARIABLE, account.S3_SECRET_VARIABLE]
    if account.VOLUME_URL_VARIABLE not in variables:
        required.insert(1, account.VOLUME_DATACENTER_VARIABLE)
    if missing := [name for name in required if name not in variables]:
        raise VolumeNotConfigured(
            f"Set {', '.join(missing)}: the volume's id and data center are in the console under "
            "Storage, the keys under Settings, S3 API Keys."
        )
    datacenter = variables.get(account.VOLUME_DATACENTER_VARIABLE, "")
    if datacenter and not _DATACENTER.fullmatch(datacenter):
        message = f"a name such as EU-RO-1, not {datacenter!r}"
        raise VolumeNotConfigured(f"{account.VOLUME_DATACENTER_VARIABLE}: {message}")
    url = variables.get(account.VOLUME_URL_VARIABLE) or _URL_TEMPLATE.format(datacenter.lower())
    keys = (variables[account.S3_KEY_VARIABLE], variables[account.S3_SECRET_VARIABLE])
    return S3Api(variables[account.VOLUME_ID_VARIABLE], url, datacenter or "us-east-1", *keys)
