"""Signed addresses of files: whoever has one may read the file for a while, without the key."""

import contextlib
import hmac
import secrets
import time
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from urllib.parse import quote, urlencode

from worker.errors import VolumeError
from worker.volume import Volume, failures, write_once

VALID_S = 3_600
SECRET_BYTES = 32
EXPIRES, SIGNATURE = "expires", "signature"


class Links:
    """Makes and checks signed addresses.

    The secret lies on the volume, so that the addresses of one worker work at all of them, and
    after a restart.

    Args:
        volume: where files are kept.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume

    def signed(self, base_url: str, path: str) -> str:
        """Return the address of a path that is right for an hour.

        Args:
            base_url: scheme, host and port of the server: "http://host:8000".
            path: not quoted.
        """
        expires = str(int(time.time()) + VALID_S)
        query = {EXPIRES: expires, SIGNATURE: self._signature(path, expires)}
        return f"{base_url.rstrip('/')}{quote(path)}?{urlencode(query)}"

    def right(self, path: str, query: Mapping[str, str]) -> bool:
        """Return whether a request's query string is the signature of its path, and is in time."""
        expires, given = query.get(EXPIRES, ""), query.get(SIGNATURE, "")
        if not (given and expires.isascii() and expires.isdecimal()):
            return False
        signed = hmac.compare_digest(given.encode(), self._signature(path, expires).encode())
        return signed and float(expires) > time.time()

    def _signature(self, path: str, expires: str) -> str:
        return hmac.new(self._secret, f"{path}\n{expires}".encode(), sha256).hexdigest()

    @cached_property
    def _secret(self) -> bytes:
        new = secrets.token_bytes(SECRET_BYTES)
        try:
            place = self._volume.directory("links.secret")
            with failures():
                write_once(place, new)
                # Not every network disk has modes.
                with contextlib.suppress(OSError):
                    place.chmod(0o600)
                return place.read_bytes()
        except VolumeError:
            # Without a volume that can be written to, they work at this worker until it ends.
            return new
