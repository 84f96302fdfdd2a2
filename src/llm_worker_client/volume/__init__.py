"""Transfers files of any size to and from the network volume through the platform's S3 API.

``Volume`` (in ``transfers``) uploads a file in concurrent parts and downloads it in one stream. A
file appears only when it is complete, and another process can continue an interrupted transfer.
``s3`` has the clients of boto3, their retries, and what their errors mean to a user. All errors are
``VolumeError``, whose messages contain no secrets.

Importing this package does not import boto3, which is an optional dependency: ``open_volume`` does,
and so does the first access to ``Volume``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from llm_worker_client.volume.errors import (
    FileChanged,
    FileCorrupted,
    NoSpace,
    NoSuchFile,
    TransferStopped,
    VolumeError,
    VolumeNotConfigured,
)

if TYPE_CHECKING:
    from llm_worker_client.volume.transfers import Volume

__all__ = [
    "FileChanged",
    "FileCorrupted",
    "NoSpace",
    "NoSuchFile",
    "TransferStopped",
    "Volume",
    "VolumeError",
    "VolumeNotConfigured",
    "open_volume",
]


def open_volume(
    id: str | None = None, datacenter: str | None = None, url: str | None = None
) -> "Volume":
    """Open a volume. Options that are not passed come from the environment.

    Raises:
        VolumeNotConfigured: If an option or boto3 is missing, or an option is malformed.
    """
    try:
        # Imported first, so that the error names boto3 and not one of its dependencies.
        import_module("boto3")
        transfers: Any = import_module("llm_worker_client.volume.transfers")
    except ModuleNotFoundError as missing:
        message = f"{missing.name} is missing: pip install 'llm-worker-client[volume]'"
        raise VolumeNotConfigured(message) from None
    volume: Volume = transfers.Volume(id, datacenter, url=url)
    return volume


def __getattr__(name: str) -> Any:
    if name == "Volume":
        return import_module("llm_worker_client.volume.transfers").Volume
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
