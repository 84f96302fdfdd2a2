"""What can be known of a model without loading it, and where it would come from."""

from dataclasses import replace
from pathlib import Path

from worker.store import disk, hub
from worker.store.snapshot import File, Origin, Reason, Snapshot, Unavailable, Wanted

__all__ = [
    "File",
    "Origin",
    "Reason",
    "Snapshot",
    "Unavailable",
    "Wanted",
    "locate",
]


def locate(wanted: Wanted, endpoint: str | None = None) -> Snapshot:
    """Find a model as vLLM would: in a directory, else on the hub, else in the hub's cache.

    What the hub refuses to confirm, but lies complete in the cache, can be loaded.

    Args:
        wanted: the model.
        endpoint: of another hub than the library's own.

    Raises:
        Unavailable: the model is nowhere to be had.
    """
    if Path(wanted.model).is_dir():
        return disk.in_directory(wanted)
    try:
        return hub.ask(wanted, endpoint)
    except Unavailable as refused:
        if refused.reason in (Reason.NOT_A_REPOSITORY, Reason.REVISION_MISSING):
            raise
        if (kept := disk.in_cache(wanted)) is None:
            raise
        return replace(kept, trouble=refused)
