"""Where a model would come from, and what it is: for whoever wants to know, not to have it."""

from dataclasses import replace

from worker.store import disk, hub
from worker.store.places import Places
from worker.store.resolve import Found, resolve
from worker.store.snapshot import Snapshot, Wanted


def locate(wanted: Wanted, places: Places, endpoint: str | None = None) -> Snapshot:
    """Describe a model as a start would find it: on the disk, else on the hub.

    Args:
        wanted: the model.
        places: where it may lie.
        endpoint: of another hub than the library's own.

    Raises:
        Unavailable: the model is nowhere to be had.
    """
    found = resolve(wanted, places)
    if isinstance(found, Found):
        described = disk.described(wanted, found.origin, found.place, found.commit)
    else:
        described = hub.ask(wanted, places, endpoint)
    return replace(described, passed=found.passed)
