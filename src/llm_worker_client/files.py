"""The command `files`, which accesses the network volume through the platform's S3 API."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2

from llm_worker_client import account
from llm_worker_client.account import NoApiKey
from llm_worker_client.terminal import INTERRUPTED, USAGE_ERROR, print_line, print_message
from llm_worker_client.transport import RunpodTransport
from llm_worker_client.volume import VolumeError, VolumeNotConfigured, open_volume

if TYPE_CHECKING:
    from llm_worker_client.volume import Volume

DEFAULT_FOLDER = "inbox"
# Seconds to wait for the registration of a file. A worker may have to start for it.
TIMEOUT_S = 300


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = (
        f"Set {account.S3_KEY_VARIABLE} and {account.S3_SECRET_VARIABLE} to an S3 API key. "
        "Repeat the command to continue an interrupted transfer where it stopped."
    )
    common = ArgumentParser(add_help=False)
    add_volume_arguments(common)
    actions = parser.add_subparsers(dest="action", required=True)
    upload = actions.add_parser("upload", parents=[common], help="put a file on the volume")
    upload.add_argument("path", type=Path)
    upload.add_argument(
        "--key", help=f"its path on the volume (default: {DEFAULT_FOLDER}/<its name>)"
    )
    upload.add_argument("--endpoint", metavar="ID", help="make it a file of this endpoint, too")
    upload.add_argument("--purpose", default="batch", help="of that file (default: batch)")
    upload.add_argument("--base-url", metavar="URL", help="of the platform's API")
    download = actions.add_parser("download", parents=[common], help="read a file of the volume")
    download.add_argument("key")
    download.add_argument("path", type=Path, nargs="?", help="default: its name, here")
    listing = actions.add_parser("list", parents=[common], help="list keys and their sizes")
    listing.add_argument("prefix", nargs="?", default="", help="what keys begin with")
    delete = actions.add_parser("delete", parents=[common], help="delete a file of the volume")
    delete.add_argument("key")
    for transfer in (upload, download):
        transfer.add_argument("--quiet", action="store_true", help="hide the progress bar")


def add_volume_arguments(parser: ArgumentParser) -> None:
    for flag, metavar, text, variable in (
        ("--volume", "ID", "the volume's id", account.VOLUME_ID_VARIABLE),
        ("--datacenter", "NAME", "such as EU-RO-1", account.VOLUME_DATACENTER_VARIABLE),
        ("--volume-url", "URL", "of another S3 API", account.VOLUME_URL_VARIABLE),
    ):
        parser.add_argument(flag, metavar=metavar, help=f"{text} ({variable})")


def run(options: Namespace) -> int:
    try:
        with open_volume(options.volume, options.datacenter, options.volume_url) as volume:
            match options.action:
                case "upload":
                    _upload(volume, options)
                case "download":
                    path = options.path or Path(options.key.rpartition("/")[2])
                    if path.is_dir():
                        path /= options.key.rpartition("/")[2]
                    volume.download(options.key, path, progress=not options.quiet)
                    print_line(str(path))
                case "list":
                    for file in volume.list(options.prefix):
                        print_line(f"{file.size:>16,}  {file.modified:%Y-%m-%d %H:%M}  {file.key}")
                case "delete":
                    volume.delete(options.key)
                    print_line(f"deleted: {options.key}")
    except (VolumeNotConfigured, NoApiKey) as error:
        print_message(error)
        return USAGE_ERROR
    except VolumeError as error:
        print_message(error)
        return 1
    except KeyboardInterrupt:
        print_message("Interrupted: run the same command again to continue.")
        return INTERRUPTED
    return 0


def _upload(volume: "Volume", options: Namespace) -> None:
    # Create the transport first, so that a missing API key is reported before the upload.
    transport = (
        RunpodTransport(options.endpoint, None, options.base_url) if options.endpoint else None
    )
    key = options.key or f"{DEFAULT_FOLDER}/{options.path.name}"
    file = volume.upload(options.path, key, progress=not options.quiet)
    if transport is None:
        print_line(file.key)
        return
    body = {"path": file.key, "filename": options.path.name, "purpose": options.purpose}
    try:
        with httpx2.Client(transport=transport, timeout=TIMEOUT_S) as client:
            response = client.post("http://endpoint/v1/files", json=body)
    except httpx2.TimeoutException:
        message = "It is on the volume, but the endpoint did not answer in time."
        raise VolumeError(message) from None
    except httpx2.TransportError as error:
        raise VolumeError(f"{file.key} is on the volume, but: {error}") from None
    response_body = response.json()
    if response.status_code != 200:
        message = response_body["error"]["message"]
        raise VolumeError(f"{file.key} is on the volume, but: {message}")
    print_line(str(response_body["id"]))
