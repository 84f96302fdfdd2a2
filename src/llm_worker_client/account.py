"""The account's API key and the platform's address, from the environment or the platform's file."""

import os
import tomllib
from pathlib import Path

PLATFORM = "https://api.runpod.ai/v2"
KEY = "RUNPOD_API_KEY"
# The name that the platform's own SDK reads.
BASE_URL = "RUNPOD_ENDPOINT_BASE_URL"
CALLERS_KEY = "PROXY_API_KEY"
ENDPOINT = "RUNPOD_ENDPOINT_ID"
VOLUME_ID = "RUNPOD_VOLUME_ID"
VOLUME_DATACENTER = "RUNPOD_VOLUME_DATACENTER"
VOLUME_URL = "RUNPOD_VOLUME_URL"
# The names that all clients of S3 read.
S3_KEY = "AWS_ACCESS_KEY_ID"
S3_SECRET = "AWS_SECRET_ACCESS_KEY"
# Written by the platform's own command lines: `runpod config` and `runpodctl config`.
FILE = Path(".runpod", "config.toml")


class NoKey(Exception):
    """There is no API key of an account."""


def api_key() -> str:
    """Return the account's API key.

    Raises:
        NoKey: neither the environment nor the platform's file has one.
    """
    if found := os.environ.get(KEY) or _in_file(Path.home() / FILE):
        return found
    raise NoKey(f"There is no API key: set {KEY}, or let `runpod config` write ~/{FILE}.")


def base_url() -> str:
    """Return the address of the platform's API."""
    return os.environ.get(BASE_URL) or PLATFORM


def endpoint_id() -> str | None:
    """Return the id of the deployed endpoint, if the environment names one."""
    return os.environ.get(ENDPOINT) or None


def callers_key() -> str | None:
    """Return the key that callers of a proxy have to send, if there is one."""
    return os.environ.get(CALLERS_KEY) or None


def volume() -> dict[str, str]:
    """Return what the environment has of the network volume and its S3 API, by variable."""
    names = (VOLUME_ID, VOLUME_DATACENTER, VOLUME_URL, S3_KEY, S3_SECRET)
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def _in_file(place: Path) -> str | None:
    try:
        found = tomllib.loads(place.read_text())
    except (OSError, ValueError):
        return None
    profile = found.get("default")
    key = profile.get("api_key") if isinstance(profile, dict) else found.get("apikey")
    return key if isinstance(key, str) and key else None
