"""Where an endpoint puts files that no job holds: its volume, if it is known."""

import threading
from typing import TYPE_CHECKING

from llm_worker_client.steps import NotStored, Store
from llm_worker_client.volume import NoSpace, NotSet, VolumeError, open_volume

if TYPE_CHECKING:
    from llm_worker_client.volume import Volume


class Shelf:
    """Takes files for the volume; threads may share it.

    Args:
        volume: None: the environment's, which is looked for when it is first needed.
    """

    def __init__(self, volume: "Volume | None") -> None:
        self._volume = volume
        self._lock = threading.Lock()

    def missing(self) -> str | None:
        """Return what has to be set before files can be taken; None: nothing."""
        try:
            self._opened()
        except NotSet as missing:
            return str(missing)
        return None

    def put(self, store: Store, stop: threading.Event) -> str:
        """Put a file on the volume; return its key.

        Args:
            store: the file.
            stop: set by another thread to give up.

        Raises:
            NotStored: it is not there.
        """
        try:
            return self._opened().keep(store.path, store.name, stop)
        except NotSet as missing:
            raise NotStored(str(missing), 413) from None
        except NoSpace as full:
            raise NotStored(str(full), 507) from None
        except VolumeError as failed:
            raise NotStored(str(failed), 502) from None

    def _opened(self) -> "Volume":
        with self._lock:
            if self._volume is None:
                self._volume = open_volume()
            return self._volume
