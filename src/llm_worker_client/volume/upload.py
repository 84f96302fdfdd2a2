"""Uploads a file in concurrent parts and resumes uploads that another process left unfinished."""

import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError
from s3transfer.utils import ReadFileChunk

from llm_worker_client.volume.errors import FileChanged, FileCorrupted
from llm_worker_client.volume.local_file import LocalFileState
from llm_worker_client.volume.progress import Progress
from llm_worker_client.volume.s3 import STOP_EVENT, S3Api, error_code

# Number of parts that are uploaded concurrently.
CONCURRENT_PARTS = 4


@dataclass(frozen=True, slots=True)
class UploadResult:
    """The result of an upload.

    Args:
        key: The file's path from the volume's root.
        size: The size of the file in bytes.
        existing: Bytes that were already on the volume.
        transferred: Bytes that were sent, including failed tries.
    """

    key: str
    size: int
    existing: int
    transferred: int


class Upload:
    """The upload of one file.

    boto3's own transfers can't be resumed by a new process, and send parts without checksums.
    """

    def __init__(self, s3: S3Api, key: str, file: LocalFileState, progress: Progress) -> None:
        self._s3 = s3
        self._key = key
        self._file = file
        self._progress = progress
        self._object = {"Bucket": s3.volume, "Key": key}

    def send(self) -> UploadResult:
        """Send the bytes that are not on the volume yet.

        Raises:
            FileChanged: If the local file has changed since the upload began.
            FileCorrupted: If the volume's file then has another size or checksum.
            OSError: If the file can't be read.
        """
        unfinished = self._s3.unfinished_upload_ids(self._key)
        parts = self._file.part_numbers
        if not unfinished and self._matches_stored_file() is True:
            self._progress.add_existing_bytes(self._file.size)
        else:
            if not unfinished and len(parts) == 1:
                self._put_part(1, self._s3.quick_client.put_object, self._object)
            else:
                self._send_parts(parts, unfinished)
            self._raise_if_changed()
            if self._matches_stored_file() is False:
                raise FileCorrupted(f"{self._key} was corrupted in transit: try again.")
        progress = self._progress
        return UploadResult(self._key, self._file.size, progress.existing, progress.transferred)

    def _send_parts(self, parts: range, unfinished: list[str]) -> None:
        upload_id, etags = self._resume_or_create(unfinished, len(parts))
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

    def _resume_or_create(self, unfinished: list[str], count: int) -> tuple[str, dict[int, str]]:
        """Resume an unfinished upload that fits, or create one; return its id and parts' ETags."""
        for upload_id in unfinished:
            items = self._s3.list_items("list_parts", "Parts", Key=self._key, UploadId=upload_id)
            etags = {part["PartNumber"]: part["ETag"].strip('"') for part in items}
            # Parts with other bytes are replaced, but a part beyond the file's end would remain.
            if max(etags, default=0) <= count:
                return upload_id, etags
            self._s3.abort_upload(self._key, upload_id)
        return self._s3.quick_client.create_multipart_upload(**self._object)["UploadId"], {}

    def _sync_part(self, upload_id: str, part: int, etag: str | None) -> str:
        """Send a part unless the volume has it with the same bytes; return its ETag."""
        offset, size = self._file.part_span(part)
        if etag is not None and etag == self._file.md5_of_range(offset, size).hex():
            self._progress.add_existing_bytes(size)
            return etag
        arguments = {**self._object, "UploadId": upload_id, "PartNumber": part}
        return self._put_part(part, self._s3.quick_client.upload_part, arguments)

    def _put_part(self, part: int, put: Callable[..., Any], arguments: dict[str, Any]) -> str:
        """Send the bytes of a part and return their ETag."""
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
