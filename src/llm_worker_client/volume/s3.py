"""The S3 API of a network volume: its clients, what is tried again, and its errors in words."""

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

from llm_worker_client.volume.errors import Changed, NoSpace, NotThere, Stopped, VolumeError

# Seconds before further tries; the first ones only until anything was answered.
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0)
FIRST_PAUSES = PAUSES[:3]
CONNECT_S = 10
# Seconds without a byte after which a connection is given up.
SILENT_S = 60
# Likewise where the server has to read whole files before it answers: to put parts together, and
# to make the checksum of a file that a worker has written.
READS_S = 900
# Uploaded parts at once, and the request that looks at the whole.
CONNECTIONS = 5

# Set to give up the transfer of a context: its threads share one event.
STOP: ContextVar[threading.Event] = ContextVar("stop")

_TRANSIENT = (exceptions.ConnectionError, exceptions.HTTPClientError)
# What the server had from a client that was cut off, or what it refuses for now.
_AGAIN = ("BadDigest", "IncompleteBody", "RequestTimeout", "SlowDown", "InternalError")
_FULL = ("InsufficientStorage", "NoSpaceLeft", "QuotaExceeded", "EntityTooLarge")
_KEYS = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"
_KNOWN = {
    "InvalidAccessKeyId": (
        VolumeError,
        f"The volume's S3 API does not know the access key ({_KEYS}).",
    ),
    "SignatureDoesNotMatch": (
        VolumeError,
        f"The secret is not that of the access key ({_KEYS}).",
    ),
    "NoSuchBucket": (
        VolumeError,
        "There is no such volume in this data center, or the key may not see it.",
    ),
    "RequestTimeTooSkewed": (VolumeError, "The clock of this machine is wrong by an hour or more."),
    "NoSuchKey": (NotThere, "There is no such file on the volume."),
    "PreconditionFailed": (
        Changed,
        "The file on the volume has changed meanwhile: start again.",
    ),
}


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


class S3:
    """The API of one volume, to be used within ``transfer``.

    Args:
        volume: its id, which is the bucket's name.
        url: of the S3 API.
        region: the data center.
        access_key: "user_…".
        secret: "rps_…".

    Attributes:
        quick: the client for answers that come at once.
        patient: the client for requests for which the server may have to read whole files.
    """

    def __init__(self, volume: str, url: str, region: str, access_key: str, secret: str) -> None:
        self.volume = volume
        self.url = url
        self._answered = False
        session = boto3.session.Session(access_key, secret, region_name=region)
        self.quick, self.patient = (
            self._client(session, silent_s) for silent_s in (SILENT_S, READS_S)
        )

    def close(self) -> None:
        self.quick.close()
        self.patient.close()

    @contextmanager
    def transfer(self, stop: threading.Event | None = None) -> Iterator[None]:
        """Raise the clients' errors as ``VolumeError``.

        Args:
            stop: set by another thread to give up what is going on.
        """
        token = STOP.set(stop or threading.Event())
        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise self._explained(error) from None
        finally:
            STOP.reset(token)

    def find(self, key: str) -> Stored | None:
        """Return what is known of a file; None: there is none."""
        try:
            found = self.patient.head_object(Bucket=self.volume, Key=key)
        except ClientError as error:
            if status_of(error.response) != 404:
                raise
            # The answer to HEAD can't say what is missing.
            self.quick.head_bucket(Bucket=self.volume)
            return None
        return Stored(key, found["ContentLength"], found["ETag"].strip('"'), found["LastModified"])

    def files(self, prefix: str) -> Iterator[Stored]:
        for one in self.pages("list_objects_v2", "Contents", Prefix=prefix):
            yield Stored(one["Key"], one["Size"], one["ETag"].strip('"'), one["LastModified"])

    def read(self, file: Stored, offset: int) -> Any:
        """Ask for a file from an offset on."""
        return self.patient.get_object(
            Bucket=self.volume, Key=file.key, Range=f"bytes={offset}-", IfMatch=f'"{file.etag}"'
        )

    def delete(self, key: str) -> None:
        self.quick.delete_object(Bucket=self.volume, Key=key)

    def pages(self, operation: str, name: str, **of: str) -> Iterator[Any]:
        """Yield what all pages of a list have under a name."""
        for page in self.patient.get_paginator(operation).paginate(Bucket=self.volume, **of):
            yield from page.get(name, ())

    def unfinished(self, key: str) -> list[str]:
        """Return the ids of the unfinished uploads of a file, the newest first."""
        found = [
            (one["Initiated"], one["UploadId"])
            for one in self.pages("list_multipart_uploads", "Uploads", Prefix=key)
            if one["Key"] == key
        ]
        return [id for _, id in sorted(found, reverse=True)]

    def abort(self, key: str, upload: str) -> None:
        """Drop an unfinished upload; one that is gone counts as dropped."""
        try:
            self.quick.abort_multipart_upload(Bucket=self.volume, Key=key, UploadId=upload)
        except ClientError as error:
            if code_of(error.response) != "NoSuchUpload":
                raise

    def _client(self, session: Any, silent_s: float) -> Any:
        client = session.client(
            "s3",
            endpoint_url=self.url,
            config=Config(
                connect_timeout=CONNECT_S,
                read_timeout=silent_s,
                max_pool_connections=CONNECTIONS,
                # Tries are counted by `_pause`: botocore gives up sooner, does not know what the
                # platform's proxies answer (524), and can't be stopped while it waits.
                retries={"mode": "standard", "total_max_attempts": 1},
                s3={"addressing_style": "path"},
                tcp_keepalive=True,
                # Newer checksums than MD5 come in a form that such servers seldom read.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        events = client.meta.events
        events.register_first("needs-retry.s3", self._pause)
        # What is read for a signature is not counted as sent.
        events.register_first("request-created.s3", signal_not_transferring)
        events.register_last("request-created.s3", signal_transferring)
        return client

    def _pause(
        self, attempts: int, response: Any, caught_exception: Exception | None, **_: Any
    ) -> float | None:
        """Wait before another try and return 0, as a handler of botocore's; None: no more tries."""
        self._answered = self._answered or response is not None
        pauses = PAUSES if self._answered else FIRST_PAUSES
        if response is None:
            may_pass = isinstance(caught_exception, _TRANSIENT)
        else:
            may_pass = _may_pass(response[1])
        if attempts > len(pauses) or not may_pass:
            return None
        return None if STOP.get().wait(pauses[attempts - 1]) else 0.0

    def _explained(self, error: BotoCoreError | ClientError) -> VolumeError:
        if isinstance(error, ClientError):
            return self._refused(error)
        if isinstance(error, exceptions.EndpointConnectionError):
            return VolumeError(
                f"{self.url} can't be reached: is the data center right, has it the S3 API, and is "
                "this machine online?"
            )
        # What a reader of a body raises comes wrapped.
        if isinstance(stopped := error.kwargs.get("error"), Stopped):
            return stopped
        return VolumeError(f"The connection to {self.url} has failed: {type(error).__name__}.")

    def _refused(self, error: ClientError) -> VolumeError:
        code, status = code_of(error.response), status_of(error.response)
        # What HEAD answers has no code.
        if error.operation_name == "HeadBucket" and status == 404:
            code = "NoSuchBucket"
        if _is_full(code, status):
            return NoSpace(f"The volume {self.volume} is full.")
        if code in _KNOWN:
            kind, message = _KNOWN[code]
            return kind(message)
        if status in (401, 403):
            return VolumeError(f"The keys are refused for the volume {self.volume} ({_KEYS}).")
        # Its own message may quote what was sent.
        return VolumeError(
            f"The volume's S3 API answers {status} {code} to {error.operation_name}."
        )


def code_of(answer: Any) -> str:
    """Return the code of an error in an answer; there may be none."""
    return str(answer.get("Error", {}).get("Code", ""))


def status_of(answer: Any) -> int:
    return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _is_full(code: str, status: int) -> bool:
    return code in _FULL or status == 507


def _may_pass(answer: Any) -> bool:
    """Return whether an answer is an error after which another try may help."""
    code, status = code_of(answer), status_of(answer)
    return not _is_full(code, status) and (status == 429 or status >= 500 or code in _AGAIN)
