"""`python -m emulator`: runs the platform until interrupted."""

import argparse
import asyncio
import contextlib
import shlex
import sys

from emulator.options import FailedAs, Options
from emulator.server import Emulator


def parse_options(arguments: list[str]) -> Options:
    defaults = Options()
    parser = argparse.ArgumentParser("emulator", description="A local RunPod Serverless platform.")
    parser.add_argument("--host", default=defaults.host)
    parser.add_argument("--port", type=int, default=8000, help="0: any free one")
    parser.add_argument("--endpoint", default=defaults.endpoint, help="the endpoint's id")
    parser.add_argument(
        "--post-delay", type=float, default=0.0, metavar="SECONDS", help="a slow link's delay"
    )
    parser.add_argument(
        "--failed-as",
        choices=[choice.value for choice in FailedAs],
        default=defaults.failed_as.value,
        help="the HTTP status an OpenAI client sees when its job failed",
    )
    given = parser.parse_args(arguments)
    return Options(
        host=given.host,
        port=given.port,
        endpoint=given.endpoint,
        post_delay_s=given.post_delay,
        failed_as=FailedAs(given.failed_as),
    )


def banner(emulator: Emulator) -> str:
    exports = (
        f"export {name}={shlex.quote(value)}" for name, value in emulator.worker_environ().items()
    )
    lines = [
        f"# endpoint: {emulator.url} (run, runsync, stream, status, cancel, health)",
        f"# OpenAI:   {emulator.openai_url}",
        "# A worker started with this environment serves it:",
        *exports,
    ]
    return "\n".join(lines) + "\n"


async def serve(options: Options) -> None:
    async with Emulator(options) as emulator:
        sys.stdout.write(banner(emulator))
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(parse_options(sys.argv[1:])))
