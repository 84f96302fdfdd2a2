"""Errors of a volume. Their messages contain no secrets."""


class VolumeError(Exception):
    """An error of the volume, of its S3 API, or of a local file."""


class VolumeNotConfigured(VolumeError):
    """The id of the volume, its data center, its keys or boto3 are missing or invalid."""


class NoSpace(VolumeError):
    """The volume or the local disk is full."""


class NoSuchFile(VolumeError):
    """The volume has no file with this key."""


class FileChanged(VolumeError):
    """A file has changed since its transfer began."""


class FileCorrupted(VolumeError):
    """The received bytes differ from the sent bytes."""


class TransferStopped(VolumeError):
    """The caller has stopped a transfer."""
