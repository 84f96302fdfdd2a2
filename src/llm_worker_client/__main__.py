"""`python -m llm_worker_client`: `proxy` serves an endpoint on this machine, `deploy` makes one.

`files` moves files to and from its volume.
"""

import sys
from argparse import Namespace

import uvicorn

from llm_worker_client import account
from llm_worker_client.account import NoKey
from llm_worker_client.callers import LOOPBACK
from llm_worker_client.command_line import read_command_line
from llm_worker_client.deploy.command import run as deploy
from llm_worker_client.endpoint import AsyncEndpoint
from llm_worker_client.files import run as files
from llm_worker_client.proxy import SERVED, Proxy


def proxy(arguments: Namespace) -> int:
    """Serve until interrupted; return the exit status."""
    key = account.callers_key()
    if key is None and arguments.host not in LOOPBACK:
        say(f"Set {account.CALLERS_KEY}: without it only this machine is served ({LOOPBACK[0]}).")
        return 2
    try:
        endpoint = AsyncEndpoint(arguments.endpoint, base_url=arguments.base_url)
    except NoKey as missing:
        say(str(missing))
        return 2
    uvicorn.run(Proxy(endpoint, key), host=arguments.host, port=arguments.port, **SERVED)
    return 0


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> int:
    arguments = read_command_line(sys.argv[1:])
    if arguments.command == "deploy":
        return deploy(arguments)
    return files(arguments) if arguments.command == "files" else proxy(arguments)


if __name__ == "__main__":
    sys.exit(main())
