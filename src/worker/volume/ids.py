"""Ids of objects on the volume: a prefix, and letters and digits that can't be guessed.

If the volume's id is known, ids of objects and names of fine-tuned adapters end with it:
``file-….vol-euvolume01``. An endpoint may have several volumes, which don't synchronise, and
``VolumeLocation`` refuses names that end with the id of another one.
"""

import base64
import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker.errors import OnOtherVolume

if TYPE_CHECKING:
    # The image build imports this package for its leases, in an environment without the settings.
    from worker.settings import Settings

_VOLUME_MARK = ".vol-"
# The platform's ids have ten characters. Names of adapters have no space for long ones, and other
# characters would make the endings ambiguous.
_VOLUME_ID = re.compile(r"[A-Za-z0-9]{6,20}")
_NAME_WITH_VOLUME_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.vol-[A-Za-z0-9]{6,20}")
# The 24 characters are 120 bits in base 32.
_ID_WITHOUT_PREFIX = re.compile(r"[a-z0-9]{24}(\.vol-[A-Za-z0-9]{6,20})?")
_ANY_ID = re.compile(r"[a-z]+[_-][a-z0-9]{24}(-\d+)?(\.vol-[A-Za-z0-9]{6,20})?")
# The id of a volume as the platform makes it. Other buckets of a path are probably not volumes.
_PLATFORM_ID = re.compile(r"[a-z0-9]{10}")
# Callers see the data center, so it must be a plain word.
_DATA_CENTER = re.compile(r"[A-Za-z0-9_-]{1,32}")


def new_id(prefix: str) -> str:
    """Return a new random id, for example ``file-...`` or ``batch_...``."""
    return prefix + _encode(secrets.token_bytes(15))


def derive_id(prefix: str, *parts: str) -> str:
    """Return an id that depends only on the parts, so that a retry gets the same id."""
    return prefix + _encode(hashlib.sha256("\0".join(parts).encode(errors="replace")).digest()[:15])


def number_id(prefix: str, id: str, number: int) -> str:
    """Return the id of a numbered part of an object, which contains the object's id."""
    name, volume_id = split_volume_id(id)
    return add_volume_id(f"{prefix}{name.rpartition('-')[2]}-{number:08}", volume_id)


def is_id(prefix: str, value: str) -> bool:
    """Return whether a string has the form of an id; such a string is safe as a file name."""
    return (
        value.startswith(prefix) and _ID_WITHOUT_PREFIX.fullmatch(value[len(prefix) :]) is not None
    )


def is_any_id(value: str) -> bool:
    """Return whether a string has the form of an id with any prefix."""
    return _ANY_ID.fullmatch(value) is not None


def is_volume_id(value: str) -> bool:
    """Return whether a string can be the volume's id in names."""
    return _VOLUME_ID.fullmatch(value) is not None


def add_volume_id(name: str, volume_id: str | None) -> str:
    """Return a name with the volume's id at its end; unchanged if the id is not known."""
    return name if volume_id is None else f"{name}{_VOLUME_MARK}{volume_id}"


def split_volume_id(name: str) -> tuple[str, str | None]:
    """Return a name without the volume's id at its end, and the volume's id or None."""
    if _NAME_WITH_VOLUME_ID.fullmatch(name) is None:
        return name, None
    stem, _, volume_id = name.rpartition(_VOLUME_MARK)
    return stem, volume_id


def _encode(data: bytes) -> str:
    return base64.b32encode(data).decode().lower()


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
            id if is_volume_id(id) else None, center if _DATA_CENTER.fullmatch(center) else None
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
        return self.add_to(new_id(prefix))

    def derive_id(self, prefix: str, *parts: str) -> str:
        """Return an id that depends only on the parts and on this volume; see ``derive_id``."""
        return self.add_to(derive_id(prefix, *parts))

    def add_to(self, name: str) -> str:
        """Return the name of an object on this volume; see ``add_volume_id``."""
        return add_volume_id(name, self.id)

    def check_name(self, noun: str, name: str, param: str | None = None) -> None:
        """Raise ``OnOtherVolume`` if a name that was not found here has another volume's id."""
        self._check_volume(split_volume_id(name)[1], f"{noun} {name}", param)

    def check_bucket(self, bucket: str, path: str) -> None:
        """Raise ``OnOtherVolume`` if the bucket of a caller's path may be another volume's."""
        if _PLATFORM_ID.fullmatch(bucket):
            self._check_volume(bucket, f"path {path}")

    def _check_volume(self, volume_id: str | None, subject: str, param: str | None = None) -> None:
        if self.id and volume_id and is_volume_id(volume_id) and volume_id != self.id:
            raise OnOtherVolume(subject, volume_id, str(self), param=param)


# The location of a directory that is used instead of a network volume.
UNKNOWN_LOCATION = VolumeLocation()
