"""`python -m emulator`: serves an endpoint until interrupted, with the workers behind it."""

import argparse
import asyncio
import contextlib
import math
import os
import re
import shlex
import signal
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from emulator.examples import ask_for_model, examples
from emulator.faults import Fault, slow_link
from emulator.fleet import Fleet
from emulator.options import ExpiredAs, FailedAs, LostAs, Options
from emulator.server import Emulator
from emulator.wire import refusal

KEY_VARIABLE = "EMULATOR_API_KEY"


def read_command_line(arguments: list[str]) -> Namespace:
    defaults = Options()
    parser = argparse.ArgumentParser(
        "emulator",
        description="A local RunPod Serverless platform.",
        epilog=f"{KEY_VARIABLE} in the environment: the API key that callers must send.",
    )
    add = parser.add_argument
    add("command", nargs="*", help="starts a worker; without it, workers are started by hand")
    add("--workers", type=whole(1, 100), default=1, help="how many to start")
    add("--logs", type=Path, default=Path(".endpoint"), metavar="DIR", help="of the workers")
    add("--grace", type=seconds, default=10.0, metavar="S", help="for running jobs at the end")
    add("--host", default=defaults.host)
    add("--port", type=whole(0, 65535), default=8000, help="0: any free one")
    add("--endpoint", type=identifier, default=defaults.endpoint, help="the endpoint's id")
    add("--request-log", type=Path, metavar="FILE", help="a line of JSON for each request")
    add("--post-delay", type=seconds, default=0.0, metavar="S", help="a slow link's delay")
    add(
        "--fault",
        type=read_fault,
        action="append",
        default=[],
        metavar="JSON",
        help='such as \'{"on": "stream", "do": "status", "calls": 3}\'',
    )
    add(
        "--execution-timeout",
        type=seconds,
        default=defaults.execution_timeout_s,
        metavar="S",
        help="of jobs whose policy names none",
    )
    for name, choices, default, text in (
        ("--failed-as", FailedAs, defaults.failed_as, "what an OpenAI client sees of a failed job"),
        ("--lost-as", LostAs, defaults.lost_as, "what becomes of the jobs of a worker that exited"),
        ("--expired-as", ExpiredAs, defaults.expired_as, "what becomes of a job whose ttl is over"),
    ):
        add(name, choices=[str(choice) for choice in choices], default=str(default), help=text)
    add(
        "--oversize-status",
        type=whole(400, 599),
        default=defaults.oversize_status,
        metavar="STATUS",
        help="what a request above the limits is answered",
    )
    add(
        "--keep-on-disconnect",
        action="store_true",
        help="let the job of an OpenAI client that hung up go on",
    )
    return parser.parse_args(arguments)


def whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isdecimal() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return read


def seconds(text: str) -> float:
    try:
        given = float(text)
    except ValueError:
        given = math.nan
    if not 0 <= given < math.inf:
        raise argparse.ArgumentTypeError(f"a number of seconds, not {text!r}")
    return given


def identifier(text: str) -> str:
    if not re.fullmatch(r"[\w-]+", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"letters, digits, - and _, not {text!r}")
    return text


def read_fault(text: str) -> Fault:
    try:
        return Fault.model_validate_json(text)
    except ValidationError as error:
        raise argparse.ArgumentTypeError(refusal(error).text) from error


def options_of(given: Namespace, api_key: str | None) -> Options:
    return Options(
        host=given.host,
        port=given.port,
        endpoint=given.endpoint,
        api_key=api_key,
        execution_timeout_s=given.execution_timeout,
        failed_as=FailedAs(given.failed_as),
        lost_as=LostAs(given.lost_as),
        expired_as=ExpiredAs(given.expired_as),
        cancel_on_disconnect=not given.keep_on_disconnect,
        oversize_status=given.oversize_status,
        faults=(*slow_link(given.post_delay), *given.fault),
        request_log=given.request_log,
    )


def tell(text: str) -> None:
    # A terminal that was closed is no reason to end before the workers have.
    with contextlib.suppress(OSError):
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


class Interrupts:
    """Ctrl-C and its relatives: the first asks for an end, a second one for an end at once."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._arrived)

    def _arrived(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


async def serve(given: Namespace, environ: dict[str, str]) -> None:
    """Serve until interrupted.

    Raises:
        OSError: the port is taken, a file can't be written or the workers' command can't be run.
    """
    interrupts = Interrupts()
    api_key = environ.pop(KEY_VARIABLE, None) or None
    if given.request_log is not None:
        given.request_log.parent.mkdir(parents=True, exist_ok=True)
    async with Emulator(options_of(given, api_key)) as emulator:
        tell(f"The endpoint: {emulator.url}\nOpenAI's API: {emulator.openai_url}")
        if not given.command:
            tell(by_hand(emulator))
            await interrupts.first.wait()
            return
        given.logs.mkdir(parents=True, exist_ok=True)
        async with Fleet(emulator, given.command, environ, given.logs, tell) as fleet:
            fleet.start(given.workers)
            tell("Requests wait until a worker is ready. Ctrl-C stops the endpoint.")
            telling = asyncio.create_task(tell_examples(emulator, fleet))
            await fleet.run_until(interrupts.first)
            telling.cancel()
            running = emulator.queue.health()["jobs"]["inProgress"]
            tell(f"\nStopping. {running} running jobs get {given.grace:g} s; Ctrl-C: none.")
            await fleet.drain(given.grace, interrupts.second)


def by_hand(emulator: Emulator) -> str:
    exports = (
        f"export {name}={shlex.quote(value)}" for name, value in emulator.worker_environ().items()
    )
    return "\n".join(["# A worker started with this environment serves it:", *exports])


async def tell_examples(emulator: Emulator, fleet: Fleet) -> None:
    await fleet.ready.wait()
    text = examples(
        api_url=emulator.api_url,
        endpoint=emulator.options.endpoint,
        model=await ask_for_model(emulator.queue),
        with_key=emulator.options.api_key is not None,
        python=shlex.quote(sys.executable),
    )
    tell(f"Try it in another terminal:\n\n{text}")


def main() -> int:
    given = read_command_line(sys.argv[1:])
    try:
        asyncio.run(serve(given, dict(os.environ)))
    except KeyboardInterrupt:  # before the event loop heeds it
        return 128 + signal.SIGINT
    except OSError as error:
        sys.stderr.write(f"The endpoint can't be served: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
