"""Downloads a file of the volume and resumes downloads that another process left unfinished.

boto3's own transfers leave no state that another process could resume from.
"""

import glob
import hashlib
import os
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from botocore.exceptions import BotoCoreError

from llm_worker_client.volume import s3 as s3_module
from llm_worker_client.volume.errors import FileChanged, FileCorrupted
from llm_worker_client.volume.local_file import LocalFileState
from llm_worker_client.volume.progress import Progress
from llm_worker_client.volume.s3 import STOP_EVENT, S3Api, VolumeFile

_BLOCK_SIZE = 2**18


def download(s3: S3Api, file: VolumeFile, path: Path, progress: Progress, part_size: int) -> None:
    """Download a file or the missing rest of it, check it, and rename it to its final path.

    The ETag may depend on ``part_size``, the bytes of each part in which the file was uploaded.

    Raises:
        FileChanged: If the file on the volume has changed since the download began.
        FileCorrupted: If the downloaded bytes have another size or checksum.
        OSError: If the file can't be written.
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
    """Return a block of a file that may be appended to, with retries.

    Raises:
        BotoCoreError: If the connection broke too often.
    """
    tries = 0
    while True:
        response = s3.request_block(file, offset, size)
        with closing(response["Body"]) as body:
            try:
                # The server may send the whole file instead of the requested block.
                if "ContentRange" not in response:
                    body.read(offset)
                return bytes(body.read(size))
            except BotoCoreError:
                if tries == len(s3_module.RETRY_PAUSES_S):
                    raise
        STOP_EVENT.get().wait(s3_module.RETRY_PAUSES_S[tries])
        tries += 1


def _download_rest(out: BinaryIO, s3: S3Api, file: VolumeFile, progress: Progress) -> None:
    """Download to the end of the file, with retries; received bytes reset the number of tries."""
    tries = 0
    while (offset := out.seek(0, os.SEEK_END)) < file.size:
        size, error = _try_download_rest(out, offset, s3, file, progress)
        if size:
            tries = 0
        elif error is None:
            raise FileCorrupted(f"{file.key} has fewer bytes than the volume says.")
        elif tries == len(s3_module.RETRY_PAUSES_S):
            raise error
        else:
            STOP_EVENT.get().wait(s3_module.RETRY_PAUSES_S[tries])
            tries += 1


def _try_download_rest(
    out: BinaryIO, offset: int, s3: S3Api, file: VolumeFile, progress: Progress
) -> tuple[int, BotoCoreError | None]:
    """Request the missing bytes once; return the number of bytes written and the error, if any."""
    size = 0
    response = s3.request_file_from_offset(file, offset)
    with closing(response["Body"]) as body:
        if response["ETag"].strip('"') != file.etag:
            raise FileChanged("The file on the volume has changed meanwhile: start again.")
        # The server may send the whole file instead of the requested rest.
        if not str(response.get("ContentRange", "")).startswith(f"bytes {offset}-"):
            progress.add_transferred_bytes(-offset)
            out.truncate(0)
        try:
            for block in iter(lambda: body.read(_BLOCK_SIZE), b""):
                out.write(block)
                progress.add_transferred_bytes(len(block))
                size += len(block)
        except BotoCoreError as error:
            return size, error
    return size, None
