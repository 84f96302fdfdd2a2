"""The S3 API of a network volume: its operations, each tried again where that may help."""

import base64
import copy
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from s3transfer.utils import signal_not_transferring, signal_transferring

from llm_worker_client.volume.errors import Stopped
from llm_worker_client.volume.words import code_of, may_pass, status_of, told

# Seconds before further tries; the first ones only until anything was answered.
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0)
FIRST_PAUSES = PAUSES[:3]
CONNECT_S = 10
# Seconds without a byte after which a connection is given up.
SILENT_S = 60
# Likewise where the server has to read whole files before it answers: to put parts together, and
# to make the checksum of a file that a worker has written.
READS_S = 900

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """Which volume, and where its S3 API is.

    Args:
        id: the volume's, which is its bucket.
        url: of the S3 API.
        region: the data center.
    """

    id: str
    url: str
    region: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A file on the volume.

    Args:
        key: its path from the volume's root.
        size: in bytes.
        etag: without its quotes.
        modified: when it was written.
    """

    key: str
    size: int
    etag: str
    modified: datetime


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an unfinished upload, as the volume has it."""

    number: int
    size: int
    etag: str


class Bucket:
    """Calls the S3 API. All methods raise ``VolumeError``.

    Args:
        place: the volume's.
        access_key: "user_…".
        secret: "rps_…".
        connections: at once.
        stop: set to give up all that is going on.
    """

    def __init__(
        self, place: Place, access_key: str, secret: str, connections: int, stop: threading.Event
    ) -> None:
        self.place = place
        self._stop = stop
        self._reached = False
        session = boto3.session.Session()

        def client(silent_s: float) -> Any:
            made = session.client(
                "s3",
                endpoint_url=place.url,
                region_name=place.region,
                aws_access_key_id=access_key,
                aws_secret_access_key=secret,
                config=_config(silent_s, connections),
            )
            # What is read for a signature is not counted as sent.
            made.meta.events.register_first("request-created.s3", signal_not_transferring)
            made.meta.events.register_last("request-created.s3", signal_transferring)
            return made

        self._quick, self._patient = client(SILENT_S), client(READS_S)

    def stopped_by(self, stop: threading.Event) -> Self:
        """Return the same, for a transfer that is given up when an event is set."""
        made = copy.copy(self)
        made._stop = stop
        return made

    def close(self) -> None:
        self._quick.close()
        self._patient.close()

    def again(self, call: Callable[[], T], *, before: Callable[[], T | None] | None = None) -> T:
        """Return what a call returns that raises errors of the S3 API's client.

        Args:
            call: to be tried.
            before: looks, before another try, whether the one before has done it.
        """
        tried = 0
        while True:
            if self._stop.is_set():
                raise Stopped("The transfer was stopped.")
            try:
                found = call()
            except (BotoCoreError, ClientError) as error:
                pauses = PAUSES if self._reached else FIRST_PAUSES
                self._reached = self._reached or isinstance(error, ClientError)
                if tried == len(pauses) or not may_pass(error):
                    raise told(error, self.place.id, self.place.url) from None
            else:
                self._reached = True
                return found
            self._stop.wait(pauses[tried])
            tried += 1
            if before is not None and (done := before()) is not None:
                return done

    def find(self, key: str) -> Stored | None:
        """Return what is known of a file; None: there is none."""

        def call() -> Any:
            try:
                return self._patient.head_object(Bucket=self.place.id, Key=key)
            except ClientError as error:
                if status_of(error) != 404:
                    raise
            # The answer to HEAD can't say what is missing.
            self._quick.head_bucket(Bucket=self.place.id)
            return None

        found = self.again(call)
        return found and Stored(
            key, found["ContentLength"], _bare(found["ETag"]), found["LastModified"]
        )

    def files(self, prefix: str) -> Iterator[Stored]:
        for one in self._all("list_objects_v2", "Contents", Prefix=prefix):
            yield Stored(one["Key"], one["Size"], _bare(one["ETag"]), one["LastModified"])

    def delete(self, key: str) -> None:
        self.again(lambda: self._quick.delete_object(Bucket=self.place.id, Key=key))

    def read(self, file: Stored, offset: int) -> Any:
        """Ask once for a file from an offset on; raises the client's own errors."""
        return self._patient.get_object(
            Bucket=self.place.id,
            Key=file.key,
            Range=f"bytes={offset}-",
            IfMatch=f'"{file.etag}"',
        )

    def put(self, key: str, body: Any, md5: bytes) -> None:
        """Send a small file once; raises the client's own errors."""
        self._quick.put_object(Bucket=self.place.id, Key=key, Body=body, ContentMD5=_base64(md5))

    # Uploads in parts:

    def unfinished(self, key: str) -> list[str]:
        """Return the ids of the unfinished uploads of a file, the newest first."""
        found = [
            (one["Initiated"], one["UploadId"])
            for one in self._all("list_multipart_uploads", "Uploads", Prefix=key)
            if one["Key"] == key
        ]
        return [id for _, id in sorted(found, reverse=True)]

    def begin(self, key: str) -> str:
        made = self.again(
            lambda: self._quick.create_multipart_upload(Bucket=self.place.id, Key=key)
        )
        return str(made["UploadId"])

    def parts(self, key: str, upload: str) -> list[Part]:
        return [
            Part(one["PartNumber"], one["Size"], _bare(one["ETag"]))
            for one in self._all("list_parts", "Parts", Key=key, UploadId=upload)
        ]

    def put_part(self, key: str, upload: str, number: int, body: Any, md5: bytes) -> str:
        """Send a part once, and return its ETag; raises the client's own errors."""
        put = self._quick.upload_part(
            Bucket=self.place.id,
            Key=key,
            UploadId=upload,
            PartNumber=number,
            Body=body,
            ContentMD5=_base64(md5),
        )
        return _bare(put["ETag"])

    def complete(
        self, key: str, upload: str, etags: list[str], find: Callable[[], Stored | None]
    ) -> None:
        """Put the parts together.

        Args:
            key: of the file.
            upload: its id.
            etags: of the parts, all of them in order.
            find: returns the file, if it is there already: an answer may have been lost.
        """
        parts = [{"PartNumber": n, "ETag": f'"{etag}"'} for n, etag in enumerate(etags, 1)]
        named = {"Bucket": self.place.id, "Key": key, "UploadId": upload}

        def call() -> object:
            try:
                return self._patient.complete_multipart_upload(
                    **named, MultipartUpload={"Parts": parts}
                )
            except ClientError as error:
                if code_of(error) != "NoSuchUpload" or (found := find()) is None:
                    raise
                return found

        self.again(call, before=find)

    def abort(self, key: str, upload: str) -> None:
        def call() -> None:
            try:
                self._quick.abort_multipart_upload(Bucket=self.place.id, Key=key, UploadId=upload)
            except ClientError as error:
                if code_of(error) != "NoSuchUpload":
                    raise

        self.again(call)

    def _all(self, operation: str, name: str, **of: str) -> list[Any]:
        """Return what all pages of a list have under a name."""

        def call() -> list[Any]:
            pages = self._patient.get_paginator(operation).paginate(Bucket=self.place.id, **of)
            return [one for page in pages for one in page.get(name, ())]

        return self.again(call)


def _config(silent_s: float, connections: int) -> Config:
    return Config(
        connect_timeout=CONNECT_S,
        read_timeout=silent_s,
        max_pool_connections=connections,
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "path"},
        tcp_keepalive=True,
        # Newer checksums than MD5 come in a form that such servers seldom read.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )


def _bare(etag: str) -> str:
    return etag.strip('"')


def _base64(md5: bytes) -> str:
    return base64.b64encode(md5).decode()
