"""Reads settings from the environment, and the API key also from the platform's config file."""

import os
import tomllib
from contextlib import suppress
from pathlib import Path

# Names and addresses by which only this machine reaches its servers.
LOOPBACK = ("127.0.0.1", "::1", "localhost")
PLATFORM_URL = "https://api.runpod.ai/v2"
API_KEY_VARIABLE = "RUNPOD_API_KEY"
# Variable that the platform's SDK reads, too.
BASE_URL_VARIABLE = "RUNPOD_ENDPOINT_BASE_URL"
PROXY_KEY_VARIABLE = "PROXY_API_KEY"
ENDPOINT_VARIABLE = "RUNPOD_ENDPOINT_ID"
VOLUME_ID_VARIABLE = "RUNPOD_VOLUME_ID"
VOLUME_DATACENTER_VARIABLE = "RUNPOD_VOLUME_DATACENTER"
VOLUME_URL_VARIABLE = "RUNPOD_VOLUME_URL"
# Variables that all S3 clients read.
S3_KEY_VARIABLE = "AWS_ACCESS_KEY_ID"
S3_SECRET_VARIABLE = "AWS_SECRET_ACCESS_KEY"
# File in the home directory that `runpod config` or `runpodctl config` has written.
CONFIG_FILE = Path(".runpod", "config.toml")


class NoApiKey(Exception):
    """No API key of an account is configured."""


def api_key() -> str:
    """Return the account's API key from the environment or ~/.runpod/config.toml.

    Raises:
        NoApiKey: If neither contains a key.
    """
    key: object = os.environ.get(API_KEY_VARIABLE)
    if not key:
        config = {}
        with suppress(OSError, ValueError):
            config = tomllib.loads((Path.home() / CONFIG_FILE).read_text())
        profile = config.get("default")
        key = profile.get("api_key") if isinstance(profile, dict) else config.get("apikey")
    if not isinstance(key, str) or not key:
        message = f"There is no API key: set {API_KEY_VARIABLE}, or let `runpod config` write"
        raise NoApiKey(f"{message} ~/{CONFIG_FILE}.")
    return key.strip()


def platform_base_url() -> str:
    return os.environ.get(BASE_URL_VARIABLE) or PLATFORM_URL


def endpoint_id() -> str | None:
    return os.environ.get(ENDPOINT_VARIABLE) or None


def proxy_key() -> str | None:
    return os.environ.get(PROXY_KEY_VARIABLE) or None


def volume_variables() -> dict[str, str]:
    names = [VOLUME_ID_VARIABLE, VOLUME_DATACENTER_VARIABLE, VOLUME_URL_VARIABLE]
    names += [S3_KEY_VARIABLE, S3_SECRET_VARIABLE]
    return {name: os.environ[name] for name in names if os.environ.get(name)}
