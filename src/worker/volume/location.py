"""The location of a worker's volume: an endpoint may have several, which don't synchronise."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker.errors import OnOtherVolume
from worker.volume import ids

if TYPE_CHECKING:
    # The image build imports this package for its leases, in an environment without the settings.
    from worker.settings import Settings

# Other buckets of a path are probably not volumes.
_PLATFORM_ID = re.compile(r"[a-z0-9]{10}")
# Callers see the data center, so it must be a plain word.
_DATA_CENTER = re.compile(r"[A-Za-z0-9_-]{1,32}")


@dataclass(frozen=True, slots=True)
class VolumeLocation:
    """The id and the data center of the worker's network volume; None if they are not known.

    An endpoint may have a volume in each of several data centers. Each worker mounts one of them,
    and an object exists only on the volume whose id it carries.
    """

    id: str | None = None
    data_center: str | None = None

    @classmethod
    def from_settings(cls, settings: "Settings") -> "VolumeLocation":
        id, center = settings.runpod_volume_id or "", settings.runpod_dc_id or ""
        return cls(
            id if ids.is_volume_id(id) else None, center if _DATA_CENTER.fullmatch(center) else None
        )

    def __str__(self) -> str:
        center = f" (data center {self.data_center})" if self.data_center else ""
        return f"{self.id}{center}"

    @property
    def as_suffix(self) -> str:
        """The location to follow "the network volume" in messages; empty if it is not known."""
        return f" {self}" if self.id else ""

    @property
    def adapters_note(self) -> str:
        """A sentence for messages: where the worker looked for adapters; empty if not known."""
        return f" It looked for adapters on the network volume {self}." if self.id else ""

    def new_id(self, prefix: str) -> str:
        """Return a new random id of an object on this volume."""
        return self.add_to(ids.new_id(prefix))

    def derive_id(self, prefix: str, *parts: str) -> str:
        """Return an id that depends only on the parts and on this volume; see ``ids.derive_id``."""
        return self.add_to(ids.derive_id(prefix, *parts))

    def add_to(self, name: str) -> str:
        """Return the name of an object on this volume; see ``ids.add_volume_id``."""
        return ids.add_volume_id(name, self.id)

    def check_name(self, noun: str, name: str, param: str | None = None) -> None:
        """Raise ``OnOtherVolume`` if a name that was not found here has another volume's id."""
        self._check_volume(ids.split_volume_id(name)[1], f"{noun} {name}", param)

    def check_bucket(self, bucket: str, path: str) -> None:
        """Raise ``OnOtherVolume`` if the bucket of a caller's path may be another volume's."""
        if _PLATFORM_ID.fullmatch(bucket):
            self._check_volume(bucket, f"path {path}")

    def _check_volume(self, volume_id: str | None, subject: str, param: str | None = None) -> None:
        if self.id and volume_id and ids.is_volume_id(volume_id) and volume_id != self.id:
            raise OnOtherVolume(subject, volume_id, str(self), param=param)


# The location of a directory that is used instead of a network volume.
UNKNOWN_LOCATION = VolumeLocation()
