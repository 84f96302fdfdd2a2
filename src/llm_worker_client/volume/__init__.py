"""Files of any size on the network volume, through the platform's S3 API.

Only what is here is loaded without boto3, which not everybody has.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from llm_worker_client.volume.errors import (
    Changed,
    Damaged,
    NoSpace,
    NotSet,
    NotThere,
    Stopped,
    VolumeError,
)

if TYPE_CHECKING:
    from llm_worker_client.volume.transfers import Volume

__all__ = [
    "Changed",
    "Damaged",
    "NoSpace",
    "NotSet",
    "NotThere",
    "Stopped",
    "Volume",
    "VolumeError",
    "open_volume",
]


def open_volume(
    id: str | None = None, datacenter: str | None = None, url: str | None = None
) -> "Volume":
    """Open a volume; what is not given is the environment's.

    Raises:
        NotSet: something is missing, and be it boto3.
    """
    try:
        # First, so that it is the one that is named: the others come with it.
        import_module("boto3")
        found: Any = import_module("llm_worker_client.volume.transfers")
    except ModuleNotFoundError as missing:
        message = f"{missing.name} is missing: pip install 'llm-worker-client[volume]'"
        raise NotSet(message) from None
    opened: Volume = found.Volume(id, datacenter, url=url)
    return opened


def __getattr__(name: str) -> Any:
    if name == "Volume":
        return import_module("llm_worker_client.volume.transfers").Volume
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
