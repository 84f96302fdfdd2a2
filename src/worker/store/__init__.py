"""Models on the disk: where they lie, whether they are complete, and how they are downloaded.

What this package exports imports no huggingface_hub, which reads the environment when it is
imported; a start that finds everything on the disk needs none.
"""

from worker.store.places import BakedModel, Places
from worker.store.refusals import ACCESS, Reason, Unavailable
from worker.store.resolve import resolve
from worker.store.snapshot import File, Found, Kind, NotFound, Origin, Snapshot, Wanted

__all__ = [
    "ACCESS",
    "BakedModel",
    "File",
    "Found",
    "Kind",
    "NotFound",
    "Origin",
    "Places",
    "Reason",
    "Snapshot",
    "Unavailable",
    "Wanted",
    "resolve",
]
