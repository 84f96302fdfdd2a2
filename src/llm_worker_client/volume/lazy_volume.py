"""The network volume of an endpoint, for files that are too large for a job."""

import threading
from typing import TYPE_CHECKING

from llm_worker_client.steps import FileNotStored, StoreFile
from llm_worker_client.volume import NoSpace, VolumeError, VolumeNotConfigured, open_volume

if TYPE_CHECKING:
    from llm_worker_client.volume import Volume


class LazyVolume:
    """A volume that is opened at its first use, by default the environment's; thread-safe."""

    def __init__(self, volume: "Volume | None") -> None:
        self._volume = volume
        self._lock = threading.Lock()

    def configuration_error(self) -> str | None:
        """Open the volume; return None, or a message if settings or a package are missing."""
        try:
            self._open()
        except VolumeNotConfigured as error:
            return str(error)
        return None

    def upload(self, file: StoreFile, stop: threading.Event) -> str:
        """Upload a file and return its key; another thread can set ``stop`` to cancel the upload.

        Raises:
            FileNotStored: If the file could not be uploaded.
        """
        try:
            return self._open().upload_by_digest(file.path, file.name, stop)
        except VolumeNotConfigured as error:
            raise FileNotStored(str(error), 413) from None
        except NoSpace as error:
            raise FileNotStored(str(error), 507) from None
        except VolumeError as error:
            raise FileNotStored(str(error), 502) from None

    def _open(self) -> "Volume":
        with self._lock:
            if self._volume is None:
                self._volume = open_volume()
            return self._volume
