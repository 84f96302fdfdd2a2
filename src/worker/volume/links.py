"""Signed URLs of files, which allow reading a file for a limited time without the API key."""

import contextlib
import hmac
import secrets
import time
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from urllib.parse import quote, urlencode

from worker.errors import VolumeError
from worker.volume import Volume, translate_os_errors
from worker.volume.durable import write_once

VALID_S = 3_600
SECRET_BYTES = 32
EXPIRES, SIGNATURE = "expires", "signature"


class SignedLinks:
    """Creates and checks signed URLs.

    The secret is stored on the volume, so that the URLs of one worker work on all workers, and
    after a restart.

    Args:
        volume: Volume with the files and the secret.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume

    def sign_url(self, base_url: str, path: str) -> str:
        """Return a signed URL that is valid for an hour.

        Args:
            base_url: Scheme, host and port of the server: "http://host:8000".
            path: Unquoted path of the URL.
        """
        expires = str(int(time.time()) + VALID_S)
        query = {EXPIRES: expires, SIGNATURE: self._signature(path, expires)}
        return f"{base_url.rstrip('/')}{quote(path)}?{urlencode(query)}"

    def has_valid_signature(self, path: str, query: Mapping[str, str]) -> bool:
        """Return whether query parameters have the path's signature and are not expired."""
        expires, signature = query.get(EXPIRES, ""), query.get(SIGNATURE, "")
        if not (signature and expires.isascii() and expires.isdecimal()):
            return False
        matches = hmac.compare_digest(signature.encode(), self._signature(path, expires).encode())
        return matches and float(expires) > time.time()

    def _signature(self, path: str, expires: str) -> str:
        return hmac.new(self._secret, f"{path}\n{expires}".encode(), sha256).hexdigest()

    @cached_property
    def _secret(self) -> bytes:
        new = secrets.token_bytes(SECRET_BYTES)
        try:
            path = self._volume.worker_path("links.secret")
            with translate_os_errors():
                write_once(path, new)
                # Some network disks have no file modes.
                with contextlib.suppress(OSError):
                    path.chmod(0o600)
                return path.read_bytes()
        except VolumeError:
            # Without a writable volume, the URLs work only on this worker until it exits.
            return new
