"""Uploads, downloads, lists and deletes the files of a network volume.

boto3's own transfers can't be resumed by a new process, and upload parts without checksums.
"""

import base64
import errno
import glob
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

from botocore.exceptions import BotoCoreError, ClientError
from s3transfer.utils import ReadFileChunk
from tqdm import tqdm

from llm_worker_client import account
from llm_worker_client.terminal import make_printable
from llm_worker_client.volume.errors import (
    FileChanged,
    FileCorrupted,
    NoSpace,
    NoSuchFile,
    TransferStopped,
    VolumeError,
    VolumeNotConfigured,
)
from llm_worker_client.volume.s3 import STOP_EVENT, S3Api, VolumeFile, error_code, wait_before_retry

_URL_TEMPLATE = "https://s3api-{}.runpod.io/"
_DATACENTER = re.compile(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)+")
# Number of parts that are uploaded concurrently.
CONCURRENT_PARTS = 4
# The platform's limit for the size of a part, in bytes, and S3's limit for the number of parts.
MAX_PART_SIZE = 500_000_000
MAX_PARTS = 10_000
DEFAULT_PART_SIZE = 8 * 2**20
# Bytes that are read at a time from a local file and from a connection.
_FILE_BLOCK_SIZE, _DOWNLOAD_BLOCK_SIZE = 2**20, 2**18
# An ETag: the MD5 of a file, or the MD5 of its parts' MD5s and the number of parts.
_ETAG = re.compile(r"([0-9a-f]{32})(?:-(\d+))?")


@dataclass(frozen=True, slots=True)
class LocalFileState:
    """The state of a local file at the time when this object was created.

    ``fingerprint`` has the file's inode, size and time of the last change. ``part_size`` are the
    bytes of every part except the last.
    """

    path: Path
    size: int
    fingerprint: tuple[int, ...]
    part_size: int

    @classmethod
    def from_path(cls, path: Path, part_size: int) -> "LocalFileState":
        """Return the state of a file; its parts are larger if ``part_size`` makes too many."""
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
        # The parts depend on the two sizes only, so that another process finds the same parts.
        min_part_size = -(-stat.st_size // MAX_PARTS)
        if min_part_size > part_size:
            part_size = -(-min_part_size // _FILE_BLOCK_SIZE) * _FILE_BLOCK_SIZE
        fingerprint = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        return cls(path, stat.st_size, fingerprint, part_size)

    @property
    def part_numbers(self) -> range:
        """The numbers of the file's parts, starting at 1. An empty file has one part."""
        return range(1, max(1, -(-self.size // self.part_size)) + 1)

    def part_span(self, part: int) -> tuple[int, int]:
        offset = (part - 1) * self.part_size
        return offset, min(self.part_size, self.size - offset)

    def md5_of_range(self, offset: int, size: int) -> bytes:
        digest = hashlib.md5(usedforsecurity=False)
        with self.path.open("rb") as file:
            file.seek(offset)
            while size and (block := file.read(min(size, _FILE_BLOCK_SIZE))):
                digest.update(block)
                size -= len(block)
        return digest.digest()

    def matches_etag(self, etag: str) -> bool | None:
        """Return whether an ETag belongs to the file's content; None if they can't be compared."""
        match = _ETAG.fullmatch(etag)
        if not match or (match[2] and int(match[2]) != len(self.part_numbers)):
            return None
        if not match[2]:
            return self.md5_of_range(0, self.size).hex() == match[1]
        md5s = b"".join(self.md5_of_range(*self.part_span(part)) for part in self.part_numbers)
        return hashlib.md5(md5s, usedforsecurity=False).hexdigest() == match[1]


class Progress(tqdm):  # type: ignore[misc] # tqdm ships no types
    """Counts bytes from several threads, and draws a bar on a terminal if ``visible`` is set.

    ``transferred`` includes failed tries; ``existing`` bytes did not have to be transferred.
    """

    def __init__(self, total: int, title: str, *, visible: bool) -> None:
        units = {"unit": "B", "unit_scale": True, "unit_divisor": 1024}
        # None disables the bar unless the output is a terminal.
        super().__init__(
            total=total, desc=make_printable(title), disable=None if visible else True, **units
        )
        self.transferred = 0
        self.existing = 0

    def add_transferred_bytes(self, bytes_transferred: int) -> None:
        """Count transferred bytes; a negative number moves the bar back before they are sent again.

        Raises:
            TransferStopped: If the caller has stopped the transfer and the number is positive.
        """
        with self.get_lock():
            self.transferred += max(bytes_transferred, 0)
            self.update(bytes_transferred)
        # Don't raise while s3transfer moves the bar back, as botocore would hide this exception.
        if bytes_transferred > 0:
            _raise_if_stopped()

    def add_existing_bytes(self, size: int) -> None:
        """Count bytes that need no transfer; raise ``TransferStopped`` if the caller stopped it."""
        with self.get_lock():
            self.existing += size
            self.update(size)
        _raise_if_stopped()


def _raise_if_stopped() -> None:
    if STOP_EVENT.get().is_set():
        raise TransferStopped("The transfer was stopped.")


@dataclass(frozen=True, slots=True)
class UploadResult:
    """The result of an upload."""

    key: str  # the file's path from the volume's root
    size: int  # of the file in bytes
    existing: int  # bytes that were already on the volume
    transferred: int  # bytes that were sent, including failed tries


class Upload:
    """The upload of one file, which resumes one that another process left unfinished."""

    def __init__(self, s3: S3Api, key: str, file: LocalFileState, progress: Progress) -> None:
        self._s3 = s3
        self._key = key
        self._file = file
        self._progress = progress
        self._object = {"Bucket": s3.volume, "Key": key}

    def send(self) -> UploadResult:
        unfinished = self._s3.unfinished_upload_ids(self._key)
        if not unfinished and self._matches_stored_file() is True:
            self._progress.add_existing_bytes(self._file.size)
        else:
            if not unfinished and len(self._file.part_numbers) == 1:
                self._put_part(1, self._s3.quick_client.put_object, self._object)
            else:
                self._send_parts(unfinished)
            self._raise_if_changed()
            if self._matches_stored_file() is False:
                raise FileCorrupted(f"{self._key} was corrupted in transit: try again.")
        progress = self._progress
        return UploadResult(self._key, self._file.size, progress.existing, progress.transferred)

    def _send_parts(self, unfinished: list[str]) -> None:
        parts = self._file.part_numbers
        for upload_id in unfinished:
            items = self._s3.list_items("list_parts", "Parts", Key=self._key, UploadId=upload_id)
            etags = {part["PartNumber"]: part["ETag"].strip('"') for part in items}
            # Parts with other bytes are replaced, but a part beyond the file's end would remain.
            if max(etags, default=0) <= len(parts):
                break
            self._s3.abort_upload(self._key, upload_id)
        else:
            created = self._s3.quick_client.create_multipart_upload(**self._object)
            upload_id, etags = created["UploadId"], {}

        stop = STOP_EVENT.get()
        with ThreadPoolExecutor(CONCURRENT_PARTS, "volume", STOP_EVENT.set, (stop,)) as executor:
            futures = [
                executor.submit(self._sync_part, upload_id, part, etags.get(part)) for part in parts
            ]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                stop.set()
                executor.shutdown(wait=False, cancel_futures=True)
                raise

        self._raise_if_changed()
        completed_parts = [
            {"PartNumber": part, "ETag": f'"{future.result()}"'}
            for part, future in zip(parts, futures, strict=True)
        ]
        try:
            self._s3.patient_client.complete_multipart_upload(
                **self._object, UploadId=upload_id, MultipartUpload={"Parts": completed_parts}
            )
        except ClientError as error:
            # An earlier try may have succeeded although its response was lost.
            if error_code(error.response) != "NoSuchUpload" or not self._matches_stored_file():
                raise

    def _sync_part(self, upload_id: str, part: int, etag: str | None) -> str:
        """Send a part unless the volume has it with the same bytes; return its ETag."""
        offset, size = self._file.part_span(part)
        if etag is not None and etag == self._file.md5_of_range(offset, size).hex():
            self._progress.add_existing_bytes(size)
            return etag
        arguments = {**self._object, "UploadId": upload_id, "PartNumber": part}
        return self._put_part(part, self._s3.quick_client.upload_part, arguments)

    def _put_part(self, part: int, put: Callable[..., Any], arguments: dict[str, Any]) -> str:
        offset, size = self._file.part_span(part)
        md5, path = self._file.md5_of_range(offset, size), str(self._file.path)
        callbacks = [self._progress.add_transferred_bytes]
        with ReadFileChunk.from_filename(path, offset, size, callbacks) as body:
            response = put(**arguments, Body=body, ContentMD5=base64.b64encode(md5).decode())
        return str(response.get("ETag", "")).strip('"')

    def _matches_stored_file(self) -> bool | None:
        """Return whether the volume's file has the local bytes; None if the ETag doesn't say."""
        stored = self._s3.find_file(self._key)
        if stored is None or stored.size != self._file.size:
            return False
        return self._file.matches_etag(stored.etag)

    def _raise_if_changed(self) -> None:
        if LocalFileState.from_path(self._file.path, self._file.part_size) != self._file:
            raise FileChanged(f"{self._file.path} has changed while it was sent: start again.")


def download(s3: S3Api, file: VolumeFile, path: Path, progress: Progress, part_size: int) -> None:
    """Download a file or the missing rest of it, check it, and rename it to its final path.

    The ETag may depend on ``part_size``, the bytes of each part in which the file was uploaded.
    """
    # This name depends on the content, so that no download continues with another file's bytes.
    digest = hashlib.sha256(f"{file.key} {file.etag} {file.size}".encode()).hexdigest()[:16]
    partial = path.with_name(f".{path.name}.{digest}.part")
    with partial.open("ab") as out:
        progress.add_existing_bytes(out.tell())
        _download_rest(out, s3, file, progress)
        out.flush()
        os.fsync(out.fileno())
    local_file = LocalFileState.from_path(partial, part_size)
    if local_file.size != file.size or local_file.matches_etag(file.etag) is False:
        partial.unlink()
        raise FileCorrupted(f"{file.key} was corrupted in transit: try again.")
    partial.replace(path)
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        leftover.unlink(missing_ok=True)


def read_block(s3: S3Api, file: VolumeFile, offset: int, size: int) -> bytes:
    """Return a block of a file that may be appended to meanwhile."""
    tries = 0
    while True:
        response = s3.request_block(file, offset, size)
        with closing(response["Body"]) as body:
            try:
                # The server may send the whole file instead of the requested block.
                if "ContentRange" not in response:
                    body.read(offset)
                return bytes(body.read(size))
            except BotoCoreError as error:
                failure = error
        wait_before_retry(tries, failure)
        tries += 1


def _download_rest(out: BinaryIO, s3: S3Api, file: VolumeFile, progress: Progress) -> None:
    """Download to the end of the file, with retries; received bytes reset the number of tries."""
    tries = 0
    while (offset := out.seek(0, os.SEEK_END)) < file.size:
        received, failure = 0, None
        response = s3.request_file_from_offset(file, offset)
        with closing(response["Body"]) as body:
            if response["ETag"].strip('"') != file.etag:
                raise FileChanged("The file on the volume has changed meanwhile: start again.")
            # The server may send the whole file instead of the requested rest.
            if not str(response.get("ContentRange", "")).startswith(f"bytes {offset}-"):
                progress.add_transferred_bytes(-offset)
                out.truncate(0)
            try:
                while block := body.read(_DOWNLOAD_BLOCK_SIZE):
                    out.write(block)
                    progress.add_transferred_bytes(len(block))
                    received += len(block)
            except BotoCoreError as error:
                failure = error
        if received:
            tries = 0
        elif failure is None:
            raise FileCorrupted(f"{file.key} has fewer bytes than the volume says.")
        else:
            wait_before_retry(tries, failure)
            tries += 1


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
        options = account.volume_variables()
        options |= {variable: value for variable, value in arguments.items() if value}
        required = [account.VOLUME_ID_VARIABLE, account.S3_KEY_VARIABLE, account.S3_SECRET_VARIABLE]
        if account.VOLUME_URL_VARIABLE not in options:
            required.insert(1, account.VOLUME_DATACENTER_VARIABLE)
        if missing := [name for name in required if name not in options]:
            raise VolumeNotConfigured(
                f"Set {', '.join(missing)}: the volume's id and data center are in the console "
                "under Storage, the keys under Settings, S3 API Keys."
            )
        region = options.get(account.VOLUME_DATACENTER_VARIABLE, "")
        if region and not _DATACENTER.fullmatch(region):
            message = f"a name such as EU-RO-1, not {region!r}"
            raise VolumeNotConfigured(f"{account.VOLUME_DATACENTER_VARIABLE}: {message}")
        self._part_size = part_size
        self._s3 = S3Api(
            options[account.VOLUME_ID_VARIABLE],
            options.get(account.VOLUME_URL_VARIABLE) or _URL_TEMPLATE.format(region.lower()),
            region or "us-east-1",
            options[account.S3_KEY_VARIABLE],
            options[account.S3_SECRET_VARIABLE],
        )

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
    parts = key.split("/")
    if not all(parts) or {".", ".."} & set(parts) or "\0" in key:
        raise VolumeError(f"{key!r} is no path of a file from the volume's root, such as inbox/a.")
    return key


@contextmanager
def _translate_local_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"There is no space left for {path}; what has come is kept: start again."
            raise NoSpace(message) from None
        raise VolumeError(f"{path}: {error.strerror or type(error).__name__}") from None
