"""A network volume: files are put on it, read, listed and deleted."""

import errno
import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from llm_worker_client import account
from llm_worker_client.volume.contents import LARGEST_PART, PART, Content
from llm_worker_client.volume.download import download
from llm_worker_client.volume.errors import NoSpace, NotSet, NotThere, VolumeError
from llm_worker_client.volume.progress import Progress
from llm_worker_client.volume.s3 import S3, Stored
from llm_worker_client.volume.upload import Sent, Upload

_URL = "https://s3api-{}.runpod.io/"
_DATACENTER = re.compile(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)+")


class Volume:
    """A network volume. What is left out is the environment's.

    All methods raise ``VolumeError``, with a message for people that has no secret in it.

    Args:
        id: of the volume; None: RUNPOD_VOLUME_ID's.
        datacenter: where it is, "EU-RO-1"; None: RUNPOD_VOLUME_DATACENTER's.
        access_key: "user_…", of an S3 API key; None: AWS_ACCESS_KEY_ID's.
        secret: "rps_…", of the same; None: AWS_SECRET_ACCESS_KEY's.
        url: of another S3 API than the platform's; None: RUNPOD_VOLUME_URL's.
        part_size: bytes that are sent together.

    Raises:
        NotSet: something is missing.
    """

    def __init__(
        self,
        id: str | None = None,
        datacenter: str | None = None,
        *,
        access_key: str | None = None,
        secret: str | None = None,
        url: str | None = None,
        part_size: int = PART,
    ) -> None:
        if not 0 < part_size <= LARGEST_PART:
            raise ValueError(f"part_size: 1 to {LARGEST_PART:,}, not {part_size}")
        arguments = {
            account.VOLUME_ID: id,
            account.VOLUME_DATACENTER: datacenter,
            account.VOLUME_URL: url,
            account.S3_KEY: access_key,
            account.S3_SECRET: secret,
        }
        named = {variable: value for variable, value in arguments.items() if value}
        self._s3 = _api(account.volume() | named)
        self._part_size = part_size

    def upload(
        self,
        path: str | Path,
        key: str,
        *,
        progress: bool = False,
        stop: threading.Event | None = None,
    ) -> Sent:
        """Put a local file on the volume; it appears there whole.

        What is there already is not sent again: the same file, or parts of it that an upload
        has left which was cut off, whoever made it.

        Args:
            path: of the local file.
            key: its path on the volume, from its root.
            progress: whether a terminal gets a bar.
            stop: set by another thread to give up.

        Raises:
            VolumeError: it failed; a further call goes on where this one was.
        """
        path, key = Path(path), _checked(key)
        with _local(path), self._s3.transfer(stop):
            content = Content.of(path, self._part_size)
            with Progress(content.size, path.name, visible=progress) as moving:
                return Upload(self._s3, key, content, moving).send()

    def keep(self, path: Path, name: str | None, stop: threading.Event) -> str:
        """Put a file on the volume under a name that its bytes alone decide, and return that.

        So the same file is sent once, and one that was cut off is gone on with.

        Args:
            path: of the local file.
            name: what its owner calls it; only its ending counts.
            stop: set by another thread to give up.
        """
        ending = re.search(r"\.[A-Za-z0-9]{1,8}\Z", name or "")
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        key = f"uploads/{digest}{ending[0] if ending else ''}"
        return self.upload(path, key, stop=stop).key

    def download(self, key: str, path: str | Path, *, progress: bool = False) -> Stored:
        """Write a file of the volume to a local one, which appears whole or not at all.

        Args:
            key: its path on the volume.
            path: of the local file; one that is there is replaced.
            progress: whether a terminal gets a bar.

        Raises:
            NotThere: the volume has no such file.
            VolumeError: it failed; a further call goes on where this one was.
        """
        path, key = Path(path), _checked(key)
        with _local(path), self._s3.transfer():
            if (file := self._s3.find(key)) is None:
                raise NotThere(f"There is no {key} on the volume.")
            with Progress(file.size, path.name, visible=progress) as moving:
                download(self._s3, file, path, moving, self._part_size)
        return file

    def list(self, prefix: str = "") -> Iterator[Stored]:
        """Yield the files whose keys begin with a prefix."""
        with self._s3.transfer():
            found = [*self._s3.files(prefix)]
        yield from found

    def delete(self, key: str) -> None:
        """Delete a file, and what unfinished uploads have left of it.

        Raises:
            NotThere: there is nothing of it.
        """
        key = _checked(key)
        with self._s3.transfer():
            unfinished = self._s3.unfinished(key)
            for upload in unfinished:
                self._s3.abort(key, upload)
            if self._s3.find(key) is not None:
                self._s3.delete(key)
            elif not unfinished:
                raise NotThere(f"There is no {key} on the volume.")

    def close(self) -> None:
        self._s3.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _checked(key: str) -> str:
    """Return a key that names a file on the volume.

    Raises:
        VolumeError: it names none.
    """
    parts = key.split("/")
    if not all(parts) or {".", ".."} & set(parts) or "\0" in key:
        raise VolumeError(f"{key!r} is no path of a file from the volume's root, such as inbox/a.")
    return key


@contextmanager
def _local(path: Path) -> Iterator[None]:
    """Raise errors of a local file as ``VolumeError``."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"There is no space left for {path}; what has come is kept: start again."
            raise NoSpace(message) from None
        raise VolumeError(f"{path}: {error.strerror or type(error).__name__}") from None


def _api(variables: dict[str, str]) -> S3:
    """Return the S3 API that variables name.

    Raises:
        NotSet: some are missing.
    """
    wanted = [account.VOLUME_ID, account.S3_KEY, account.S3_SECRET]
    if account.VOLUME_URL not in variables:
        wanted.insert(1, account.VOLUME_DATACENTER)
    if missing := [name for name in wanted if name not in variables]:
        raise NotSet(
            f"Set {', '.join(missing)}: the volume's id and data center are in the console under "
            "Storage, the keys under Settings, S3 API Keys."
        )
    datacenter = variables.get(account.VOLUME_DATACENTER, "")
    if datacenter and not _DATACENTER.fullmatch(datacenter):
        raise NotSet(f"{account.VOLUME_DATACENTER}: a name such as EU-RO-1, not {datacenter!r}")
    url = variables.get(account.VOLUME_URL) or _URL.format(datacenter.lower())
    keys = (variables[account.S3_KEY], variables[account.S3_SECRET])
    return S3(variables[account.VOLUME_ID], url, datacenter or "us-east-1", *keys)
