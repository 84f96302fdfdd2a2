"""Errors of the S3 API's client, in plain words."""

from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
)

from llm_worker_client.volume.errors import Changed, NoSpace, NotThere, VolumeError

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


def may_pass(error: Exception) -> bool:
    """Return whether another try may help."""
    if isinstance(error, ClientError):
        if code_of(error) in _FULL or status_of(error) == 507:
            return False
        return status_of(error) in (429, *range(500, 600)) or code_of(error) in _AGAIN
    return isinstance(error, HTTPClientError | EndpointConnectionError | IncompleteReadError)


def told(error: BotoCoreError | ClientError, volume: str, url: str) -> VolumeError:
    """Return what an error of the S3 API's client is for a caller.

    Args:
        error: as it came.
        volume: the id.
        url: of the S3 API.
    """
    if isinstance(error, EndpointConnectionError):
        return VolumeError(
            f"{url} can't be reached: is the data center right, has it the S3 API, and is this "
            "machine online?"
        )
    if not isinstance(error, ClientError):
        return VolumeError(f"The connection to {url} has failed: {type(error).__name__}.")
    code, status = code_of(error), status_of(error)
    # What HEAD answers has no code.
    if error.operation_name == "HeadBucket" and status == 404:
        code = "NoSuchBucket"
    if code in _FULL or status == 507:
        return NoSpace(f"The volume {volume} is full.")
    if code in _KNOWN:
        kind, message = _KNOWN[code]
        return kind(message)
    if status in (401, 403):
        return VolumeError(f"The keys are refused for the volume {volume} ({_KEYS}).")
    # Its own message may quote what was sent.
    return VolumeError(f"The volume's S3 API answers {status} {code} to {error.operation_name}.")


def code_of(error: ClientError) -> str:
    found: Any = error.response.get("Error", {}).get("Code", "")
    return str(found)


def status_of(error: ClientError) -> int:
    found: Any = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return int(found)
