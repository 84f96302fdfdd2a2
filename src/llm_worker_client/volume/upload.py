"""Sends a file to the volume in parts, some at once, and goes on where another process was cut."""

import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError
from s3transfer.utils import ReadFileChunk

from llm_worker_client.volume.contents import Content
from llm_worker_client.volume.errors import Changed, Damaged
from llm_worker_client.volume.progress import Progress
from llm_worker_client.volume.s3 import S3, STOP, code_of

# Parts at once.
AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Sent:
    """A file that is on the volume.

    Args:
        key: its path from the volume's root.
        size: in bytes.
        found: bytes that were on the volume already.
        moved: bytes that were sent, those of failed tries too.
    """

    key: str
    size: int
    found: int
    moved: int


class Upload:
    """Sends one file.

    boto3's own transfers begin anew in another process, and send parts without their checksums.
    """

    def __init__(self, s3: S3, key: str, content: Content, progress: Progress) -> None:
        self._s3 = s3
        self._key = key
        self._content = content
        self._progress = progress
        self._file = {"Bucket": s3.volume, "Key": key}

    def send(self) -> Sent:
        """Send what is not there yet.

        Raises:
            Changed: the local file has changed meanwhile.
            Damaged: what has arrived has another size or checksum than the local file.
            OSError: the file can't be read.
        """
        unfinished = self._s3.unfinished(self._key)
        parts = self._content.parts
        if not unfinished and self._fits() is True:
            self._progress.find(self._content.size)
        else:
            if not unfinished and len(parts) == 1:
                self._send(1, self._s3.quick.put_object, self._file)
            else:
                self._send_parts(parts, unfinished)
            self._check_unchanged()
            if self._fits() is False:
                raise Damaged(f"{self._key} has arrived with other bytes: try again.")
        return Sent(self._key, self._content.size, self._progress.found, self._progress.moved)

    def _send_parts(self, parts: range, unfinished: list[str]) -> None:
        upload, there = self._upload(unfinished, len(parts))
        stop = STOP.get()
        with ThreadPoolExecutor(AT_ONCE, "volume", STOP.set, (stop,)) as executor:
            sending = [
                executor.submit(self._send_part, upload, part, there.get(part)) for part in parts
            ]
            try:
                for sent in as_completed(sending):
                    sent.result()
            except BaseException:
                stop.set()
                executor.shutdown(wait=False, cancel_futures=True)
                raise
        self._check_unchanged()
        etags = [
            {"PartNumber": part, "ETag": f'"{sent.result()}"'}
            for part, sent in zip(parts, sending, strict=True)
        ]
        try:
            self._s3.patient.complete_multipart_upload(
                **self._file, UploadId=upload, MultipartUpload={"Parts": etags}
            )
        except ClientError as error:
            # It is done, if the answer to an earlier try was lost.
            if code_of(error.response) != "NoSuchUpload" or not self._fits():
                raise

    def _upload(self, unfinished: list[str], count: int) -> tuple[str, dict[int, str]]:
        """Return the upload to go on with, and its parts' ETags; a new one, if none fits."""
        for id in unfinished:
            listed = self._s3.pages("list_parts", "Parts", Key=self._key, UploadId=id)
            there = {part["PartNumber"]: part["ETag"].strip('"') for part in listed}
            # Parts with other bytes are replaced; one that the file has not would stay.
            if max(there, default=0) <= count:
                return id, there
            self._s3.abort(self._key, id)
        return self._s3.quick.create_multipart_upload(**self._file)["UploadId"], {}

    def _send_part(self, upload: str, part: int, there: str | None) -> str:
        """Send a part, unless it is there with the same bytes; return its ETag."""
        offset, size = self._content.span(part)
        if there is not None and there == self._content.md5(offset, size).hex():
            self._progress.find(size)
            return there
        named = {**self._file, "UploadId": upload, "PartNumber": part}
        return self._send(part, self._s3.quick.upload_part, named)

    def _send(self, part: int, put: Callable[..., Any], named: dict[str, Any]) -> str:
        """Send a part's bytes; return their ETag."""
        offset, size = self._content.span(part)
        md5, path = self._content.md5(offset, size), str(self._content.path)
        with ReadFileChunk.from_filename(path, offset, size, [self._progress.move]) as body:
            answer = put(**named, Body=body, ContentMD5=base64.b64encode(md5).decode())
        return str(answer.get("ETag", "")).strip('"')

    def _fits(self) -> bool | None:
        """Return whether the file on the volume has the same bytes; None: its ETag is no MD5."""
        found = self._s3.find(self._key)
        if found is None or found.size != self._content.size:
            return False
        return self._content.fits(found.etag)

    def _check_unchanged(self) -> None:
        if Content.of(self._content.path, self._content.part_size) != self._content:
            raise Changed(f"{self._content.path} has changed while it was sent: start again.")
