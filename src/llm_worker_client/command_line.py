"""The command line of `python -m llm_worker_client`."""

import argparse
from argparse import Namespace
from typing import NoReturn

from llm_worker_client import account
from llm_worker_client.callers import LOOPBACK
from llm_worker_client.deploy.command import register
from llm_worker_client.files import register as files_arguments


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        what, said, words = message.partition("unrecognized arguments: ")
        # What they hold may be a secret.
        names = [word.partition("=")[0] for word in words.split() if word.startswith("-")]
        super().error(f"{what}{said}{' '.join(names) or 'words of no flag'}" if said else message)


def read_command_line(arguments: list[str]) -> Namespace:
    """Return what is asked for; prints a mistake and exits with 2."""
    parser = _Parser(
        "llm_worker_client", description="For callers of a deployed endpoint of this worker."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    proxy = commands.add_parser(
        "proxy",
        help="serve all routes of an endpoint on this machine",
        epilog=(
            f"The account's key is that of {account.KEY} or of ~/{account.FILE}. Callers never see "
            f"it; they send the key of {account.CALLERS_KEY}, if there is one."
        ),
    )
    proxy.add_argument("--endpoint", required=True, metavar="ID", help="the endpoint's id")
    proxy.add_argument("--host", default=LOOPBACK[0])
    proxy.add_argument("--port", type=_port, default=8000, help="0: any free one")
    proxy.add_argument("--base-url", metavar="URL", help="of the platform's API")
    deploy = commands.add_parser("deploy", help="create, change, watch and delete an endpoint")
    register(deploy)
    files = commands.add_parser("files", help="files of any size on the network volume")
    files_arguments(files)
    return parser.parse_args(arguments)


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"a whole number from 0 to 65535, not {text!r}")
    return int(text)
