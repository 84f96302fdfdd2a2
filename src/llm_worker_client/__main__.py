"""`python -m llm_worker_client`: `proxy` serves an endpoint on this machine, `deploy` makes one.

`files` moves files to and from its volume.
"""

import argparse
import sys
from argparse import Namespace
from typing import NoReturn

import uvicorn

from llm_worker_client import account, files
from llm_worker_client.account import NoKey
from llm_worker_client.callers import LOOPBACK
from llm_worker_client.deploy import command as deploy
from llm_worker_client.endpoint import AsyncEndpoint
from llm_worker_client.proxy import SERVED, Proxy


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
    deploy.register(
        commands.add_parser("deploy", help="create, change, watch and delete an endpoint")
    )
    files.register(commands.add_parser("files", help="files of any size on the network volume"))
    return parser.parse_args(arguments)


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"a whole number from 0 to 65535, not {text!r}")
    return int(text)


def proxy(arguments: Namespace) -> int:
    """Serve until interrupted; return the exit status."""
    key = account.callers_key()
    if key is None and arguments.host not in LOOPBACK:
        message = f"without it only this machine is served ({LOOPBACK[0]})."
        return _wrong(f"Set {account.CALLERS_KEY}: {message}")
    try:
        endpoint = AsyncEndpoint(arguments.endpoint, base_url=arguments.base_url)
    except NoKey as missing:
        return _wrong(str(missing))
    uvicorn.run(Proxy(endpoint, key), host=arguments.host, port=arguments.port, **SERVED)
    return 0


def _wrong(message: str) -> int:
    sys.stderr.write(f"{message}\n")
    return 2


def main() -> int:
    arguments = read_command_line(sys.argv[1:])
    commands = {"deploy": deploy.run, "files": files.run, "proxy": proxy}
    return commands[arguments.command](arguments)


if __name__ == "__main__":
    sys.exit(main())
