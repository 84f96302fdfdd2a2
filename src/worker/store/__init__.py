"""Models on the disk: where they lie, whether they are complete, and how they get there.

What looks on the disk imports no library of the hub's, which would read the environment, and a
start that finds everything needs none.
"""

from worker.store.places import BakedModel, Places
from worker.store.refusals import Reason, Unavailable, unavailable
from worker.store.resolve import Found, NotFound, resolve
from worker.store.snapshot import File, Kind, Origin, Snapshot, Wanted

__all__ = [
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
    "unavailable",
]
