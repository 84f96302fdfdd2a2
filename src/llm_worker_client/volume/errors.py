"""What can be wrong with a volume. No message has a secret in it."""


class VolumeError(Exception):
    """Something is wrong with the volume, its S3 API, or a local file."""


class NotSet(VolumeError):
    """It is not said which volume, or with which keys."""


class NoSpace(VolumeError):
    """The volume, or the local disk, is full."""


class NotThere(VolumeError):
    """The volume has no such file."""


class Changed(VolumeError):
    """A file is not what it was when its transfer began."""


class Damaged(VolumeError):
    """What has arrived is not what was sent."""


class Stopped(VolumeError):
    """The caller has stopped a transfer."""
