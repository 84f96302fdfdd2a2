"""The S3 API of a network volume: its clients, their retries and their errors."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import boto3
from botocore import exceptions
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from s3transfer.utils import signal_not_transferring, signal_transferring

from llm_worker_client.volume.errors import (
    FileChanged,
    NoSpace,
    NoSuchFile,
    TransferStopped,
    VolumeError,
)

# Seconds before each retry; the shorter tuple applies until the server has responded once.
RETRY_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0)
INITIAL_RETRY_PAUSES_S = RETRY_PAUSES_S[:3]
CONNECT_TIMEOUT_S = 10
# Seconds without a byte after which a connection is closed.
READ_TIMEOUT_S = 60
# Read timeout for requests for which the server reads whole files before it responds: to join
# parts, and to compute the checksum of a file that a worker has written.
SLOW_READ_TIMEOUT_S = 900
# One connection for each part that is uploaded concurrently, and one to check the whole file.
MAX_CONNECTIONS = 5

# The event that stops a ``stoppable_transfer``. All threads of the transfer share the event.
STOP_EVENT: ContextVar[threading.Event] = ContextVar("stop")

_TRANSIENT_ERRORS = (exceptions.ConnectionError, exceptions.HTTPClientError)
# Error codes of a request that was interrupted, and of temporary refusals.
_TRANSIENT_CODES = ("BadDigest", "IncompleteBody", "RequestTimeout", "SlowDown", "InternalError")
_NO_SPACE_CODES = ("InsufficientStorage", "NoSpaceLeft", "QuotaExceeded", "EntityTooLarge")
_KEY_VARIABLES = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"
_ERROR_BY_CODE = {
    "InvalidAccessKeyId": (
        VolumeError,
        f"The volume's S3 API does not know the access key ({_KEY_VARIABLES}).",
    ),
    "SignatureDoesNotMatch": (
        VolumeError,
        f"The secret is not that of the access key ({_KEY_VARIABLES}).",
    ),
    "NoSuchBucket": (
        VolumeError,
        "There is no such volume in this data center, or the key may not see it.",
    ),
    "RequestTimeTooSkewed": (VolumeError, "The clock of this machine is wrong by an hour or more."),
    "NoSuchKey": (NoSuchFile, "There is no such file on the volume."),
    "PreconditionFailed": (
        FileChanged,
        "The file on the volume has changed meanwhile: start again.",
    ),
}


@dataclass(frozen=True, slots=True)
class VolumeFile:
    """A file on the volume."""

    key: str  # path from the volume's root
    size: int  # in bytes
    etag: str  # without the quotes
    modified: datetime


class S3Api:
    """The S3 API of one volume. Call its methods within ``stoppable_transfer``.

    The bucket has the volume's id as its name, and the region is the data center. ``quick_client``
    sends requests that the server answers immediately, ``patient_client`` those for which it may
    have to read whole files.
    """

    def __init__(self, volume: str, url: str, region: str, access_key: str, secret: str) -> None:
        self.volume = volume
        self.url = url
        self._has_response = False
        session = boto3.session.Session(access_key, secret, region_name=region)
        self.quick_client = self._create_client(session, READ_TIMEOUT_S)
        self.patient_client = self._create_client(session, SLOW_READ_TIMEOUT_S)

    def close(self) -> None:
        self.quick_client.close()
        self.patient_client.close()

    @contextmanager
    def stoppable_transfer(self, stop: threading.Event | None = None) -> Iterator[None]:
        """Raise the clients' errors as ``VolumeError``; setting ``stop`` stops the transfers."""
        token = STOP_EVENT.set(stop or threading.Event())
        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise self._to_volume_error(error) from None
        finally:
            STOP_EVENT.reset(token)

    def find_file(self, key: str) -> VolumeFile | None:
        try:
            head = self.patient_client.head_object(Bucket=self.volume, Key=key)
        except ClientError as error:
            if http_status(error.response) != 404:
                raise
            # A response to HEAD doesn't say whether the file or the volume is missing.
            self.quick_client.head_bucket(Bucket=self.volume)
            return None
        return VolumeFile(key, head["ContentLength"], head["ETag"].strip('"'), head["LastModified"])

    def list_files(self, prefix: str) -> Iterator[VolumeFile]:
        for item in self.list_items("list_objects_v2", "Contents", Prefix=prefix):
            etag = item["ETag"].strip('"')
            yield VolumeFile(item["Key"], item["Size"], etag, item["LastModified"])

    def request_file_from_offset(self, file: VolumeFile, offset: int) -> Any:
        """Request a file from an offset; the server refuses if the file's ETag has changed."""
        return self.patient_client.get_object(
            Bucket=self.volume, Key=file.key, Range=f"bytes={offset}-", IfMatch=f'"{file.etag}"'
        )

    def request_block(self, file: VolumeFile, offset: int, size: int) -> Any:
        """Request a block of a file whose ETag may have changed."""
        span = f"bytes={offset}-{offset + size - 1}"
        return self.patient_client.get_object(Bucket=self.volume, Key=file.key, Range=span)

    def delete_file(self, key: str) -> None:
        self.quick_client.delete_object(Bucket=self.volume, Key=key)

    def list_items(self, operation: str, name: str, **filters: str) -> Iterator[Any]:
        """Yield the items of a list operation, from all pages; ``name`` is their key in a page."""
        paginator = self.patient_client.get_paginator(operation)
        for page in paginator.paginate(Bucket=self.volume, **filters):
            yield from page.get(name, ())

    def unfinished_upload_ids(self, key: str) -> list[str]:
        """Return the ids of the unfinished uploads of a file, the newest first."""
        uploads = [
            (upload["Initiated"], upload["UploadId"])
            for upload in self.list_items("list_multipart_uploads", "Uploads", Prefix=key)
            if upload["Key"] == key
        ]
        return [id for _, id in sorted(uploads, reverse=True)]

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Delete an unfinished upload; do nothing if it no longer exists."""
        try:
            arguments = {"Bucket": self.volume, "Key": key, "UploadId": upload_id}
            self.quick_client.abort_multipart_upload(**arguments)
        except ClientError as error:
            if error_code(error.response) != "NoSuchUpload":
                raise

    def _create_client(self, session: Any, read_timeout_s: float) -> Any:
        client = session.client(
            "s3",
            endpoint_url=self.url,
            config=Config(
                connect_timeout=CONNECT_TIMEOUT_S,
                read_timeout=read_timeout_s,
                max_pool_connections=MAX_CONNECTIONS,
                # `_pause_before_retry` counts the tries. botocore's retries end sooner, ignore the
                # status 524 of the platform's proxies, and can't be stopped during a pause.
                retries={"mode": "standard", "total_max_attempts": 1},
                s3={"addressing_style": "path"},
                tcp_keepalive=True,
                # Few S3-compatible servers support checksums newer than MD5.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        events = client.meta.events
        events.register_first("needs-retry.s3", self._pause_before_retry)
        # Bytes that are read for a signature don't count as sent.
        events.register_first("request-created.s3", signal_not_transferring)
        events.register_last("request-created.s3", signal_transferring)
        return client

    def _pause_before_retry(
        self, attempts: int, response: Any, caught_exception: Exception | None, **_: Any
    ) -> float | None:
        """Wait before a retry and return 0, as botocore expects; return None for no retry."""
        self._has_response = self._has_response or response is not None
        pauses = RETRY_PAUSES_S if self._has_response else INITIAL_RETRY_PAUSES_S
        if response is None:
            is_transient = isinstance(caught_exception, _TRANSIENT_ERRORS)
        else:
            code, status = error_code(response[1]), http_status(response[1])
            is_transient = status == 429 or status >= 500 or code in _TRANSIENT_CODES
            is_transient = is_transient and not _is_full_volume_error(code, status)
        if attempts > len(pauses) or not is_transient:
            return None
        return None if STOP_EVENT.get().wait(pauses[attempts - 1]) else 0.0

    def _to_volume_error(self, error: BotoCoreError | ClientError) -> VolumeError:
        if isinstance(error, exceptions.EndpointConnectionError):
            return VolumeError(
                f"{self.url} can't be reached: is the data center right, has it the S3 API, and is "
                "this machine online?"
            )
        if isinstance(error, BotoCoreError):
            # botocore wraps exceptions that are raised while it reads a body.
            if isinstance(stopped := error.kwargs.get("error"), TransferStopped):
                return stopped
            return VolumeError(f"The connection to {self.url} has failed: {type(error).__name__}.")

        code, status = error_code(error.response), http_status(error.response)
        # A response to HEAD has no error code.
        if error.operation_name == "HeadBucket" and status == 404:
            code = "NoSuchBucket"
        if _is_full_volume_error(code, status):
            return NoSpace(f"The volume {self.volume} is full.")
        if code in _ERROR_BY_CODE:
            error_class, message = _ERROR_BY_CODE[code]
            return error_class(message)
        if status in (401, 403):
            message = f"The keys are refused for the volume {self.volume} ({_KEY_VARIABLES})."
        else:
            # The server's message may quote parts of the request.
            operation = error.operation_name
            message = f"The volume's S3 API answers {status} {code} to {operation}."
        return VolumeError(message)


def wait_before_retry(retries: int, error: Exception) -> None:
    """Wait after an error and ``retries`` earlier retries; raise it if there is no retry left.

    A stop of the transfer ends the wait.
    """
    if retries == len(RETRY_PAUSES_S):
        raise error
    STOP_EVENT.get().wait(RETRY_PAUSES_S[retries])


def error_code(response: Any) -> str:
    return str(response.get("Error", {}).get("Code", ""))


def http_status(response: Any) -> int:
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _is_full_volume_error(code: str, status: int) -> bool:
    return code in _NO_SPACE_CODES or status == 507
