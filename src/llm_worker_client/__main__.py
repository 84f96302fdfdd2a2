"""Command line of ``python -m llm_worker_client``: proxy, deploy, files and receipts."""

import argparse
import sys
from argparse import Namespace
from typing import NoReturn

import uvicorn

from llm_worker_client import account, files
from llm_worker_client.account import NoApiKey
from llm_worker_client.deploy import command as deploy
from llm_worker_client.endpoint import AsyncEndpoint
from llm_worker_client.proxy import UVICORN_OPTIONS, Proxy
from llm_worker_client.receipts import command as receipts
from llm_worker_client.terminal import USAGE_ERROR, print_message


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        before, marker, words = message.partition("unrecognized arguments: ")
        # Values of unknown arguments may be secrets; print only the names.
        flags = [word.partition("=")[0] for word in words.split() if word.startswith("-")]
        names = " ".join(flags) or "arguments without a flag"
        super().error(f"{before}{marker}{names}" if marker else message)


def read_command_line(arguments: list[str]) -> Namespace:
    parser = _Parser(
        "llm_worker_client", description="For callers of a deployed endpoint of this worker."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    proxy = commands.add_parser(
        "proxy",
        help="serve all routes of an endpoint on this machine",
        epilog=(
            f"The account's key is read from {account.API_KEY_VARIABLE} or "
            f"~/{account.CONFIG_FILE}. Callers never see it; they send the key in "
            f"{account.PROXY_KEY_VARIABLE}, if it is set."
        ),
    )
    proxy.add_argument("--endpoint", required=True, metavar="ID", help="the endpoint's id")
    proxy.add_argument("--host", default=account.LOOPBACK[0])
    proxy.add_argument("--port", type=_parse_port, default=8000, help="0: any free port")
    proxy.add_argument("--base-url", metavar="URL", help="of the platform's API")
    deploy.add_arguments(
        commands.add_parser("deploy", help="create, change, watch and delete an endpoint")
    )
    files.add_arguments(
        commands.add_parser("files", help="files of any size on the network volume")
    )
    receipts.add_arguments(
        commands.add_parser("receipts", help="sum the receipts that workers wrote to the volume")
    )
    return parser.parse_args(arguments)


def _parse_port(text: str) -> int:
    if not (text.isdecimal() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"a whole number from 0 to 65535, not {text!r}")
    return int(text)


def run_proxy(arguments: Namespace) -> int:
    key = account.proxy_key()
    serves_network = arguments.host not in account.LOOPBACK
    if key is None and serves_network:
        message = f"without it only this machine is served ({account.LOOPBACK[0]})."
        print_message(f"Set {account.PROXY_KEY_VARIABLE}: {message}")
        return USAGE_ERROR
    try:
        endpoint = AsyncEndpoint(arguments.endpoint, base_url=arguments.base_url)
    except NoApiKey as error:
        print_message(error)
        return USAGE_ERROR
    proxy = Proxy(endpoint, key, serves_network=serves_network)
    uvicorn.run(proxy, host=arguments.host, port=arguments.port, **UVICORN_OPTIONS)
    return 0


def main() -> int:
    arguments = read_command_line(sys.argv[1:])
    commands = {
        "deploy": deploy.run_subcommand,
        "files": files.run,
        "proxy": run_proxy,
        "receipts": receipts.run,
    }
    return commands[arguments.command](arguments)


if __name__ == "__main__":
    sys.exit(main())
