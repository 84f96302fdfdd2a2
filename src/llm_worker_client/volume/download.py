"""Reads a file of the volume, and goes on where another process was cut.

boto3's own transfers leave nothing that another process could go on with.
"""

import glob
import hashlib
import os
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from botocore.exceptions import BotoCoreError

from llm_worker_client.volume import s3 as api
from llm_worker_client.volume.contents import Content
from llm_worker_client.volume.errors import Changed, Damaged
from llm_worker_client.volume.progress import Progress
from llm_worker_client.volume.s3 import S3, STOP, Stored

_BLOCK = 2**18


def download(s3: S3, file: Stored, path: Path, progress: Progress, part_size: int) -> None:
    """Read what is not there yet; then the file has its name.

    Its checksum may depend on ``part_size``, in which files are sent.

    Raises:
        Changed: the file on the volume has changed meanwhile.
        Damaged: what has arrived has another size or checksum.
        OSError: it can't be written.
    """
    # Of this content alone: what is left of another one is never gone on with.
    mark = hashlib.sha256(f"{file.key} {file.etag} {file.size}".encode()).hexdigest()[:16]
    part = path.with_name(f".{path.name}.{mark}.part")
    with part.open("ab") as out:
        progress.find(out.tell())
        _fill(out, s3, file, progress)
        out.flush()
        os.fsync(out.fileno())
    content = Content.of(part, part_size)
    if content.size != file.size or content.fits(file.etag) is False:
        part.unlink()
        raise Damaged(f"{file.key} has arrived with other bytes: try again.")
    part.replace(path)
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        left.unlink(missing_ok=True)


def _fill(out: BinaryIO, s3: S3, file: Stored, progress: Progress) -> None:
    """Read to the end; tries are counted anew whenever something has come."""
    tries = 0
    while (offset := out.seek(0, os.SEEK_END)) < file.size:
        size, broken = _read(out, offset, s3, file, progress)
        if size:
            tries = 0
        elif broken is None:
            raise Damaged(f"{file.key} has fewer bytes than the volume says.")
        elif tries == len(api.PAUSES):
            raise broken
        else:
            STOP.get().wait(api.PAUSES[tries])
            tries += 1


def _read(
    out: BinaryIO, offset: int, s3: S3, file: Stored, progress: Progress
) -> tuple[int, BotoCoreError | None]:
    """Ask once for what is missing; return how much was written, and what broke it off."""
    size = 0
    answer = s3.read(file, offset)
    with closing(answer["Body"]) as body:
        if answer["ETag"].strip('"') != file.etag:
            raise Changed("The file on the volume has changed meanwhile: start again.")
        if not str(answer.get("ContentRange", "")).startswith(f"bytes {offset}-"):
            progress.move(-offset)
            out.truncate(0)
        try:
            for block in iter(lambda: body.read(_BLOCK), b""):
                out.write(block)
                progress.move(len(block))
                size += len(block)
        except BotoCoreError as error:
            return size, error
    return size, None
