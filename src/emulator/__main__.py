"""`python -m emulator`: serves an endpoint until interrupted, with the workers behind it."""

import argparse
import asyncio
import os
import shlex
import signal
import sys
from argparse import Namespace
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
    parser = argparse.ArgumentParser("emulator", description="A local RunPod Serverless platform.")
    parser.add_argument(
        "command", nargs="*", help="starts a worker; without it, workers are started by hand"
    )
    parser.add_argument("--workers", type=at_least_one, default=1, help="how many of them")
    parser.add_argument(
        "--logs", type=Path, default=Path(".endpoint"), metavar="DIRECTORY", help="theirs"
    )
    parser.add_argument(
        "--grace", type=float, default=10.0, metavar="SECONDS", help="for their jobs, at the end"
    )
    parser.add_argument("--host", default=defaults.host)
    parser.add_argument("--port", type=int, default=8000, help="0: any free one")
    parser.add_argument("--endpoint", default=defaults.endpoint, help="the endpoint's id")
    parser.add_argument("--request-log", type=Path, metavar="FILE", help="a line for each request")
    parser.add_argument(
        "--fault",
        type=read_fault,
        action="append",
        default=[],
        metavar="JSON",
        help='such as \'{"on": "stream", "do": "delay", "delay_s": 0.05}\'',
    )
    parser.add_argument(
        "--post-delay", type=float, default=0.0, metavar="SECONDS", help="a slow link's delay"
    )
    parser.add_argument(
        "--execution-timeout",
        type=float,
        default=defaults.execution_timeout_s,
        metavar="SECONDS",
        help="of jobs whose policy names none",
    )
    for name, kind, default, text in (
        ("--failed-as", FailedAs, defaults.failed_as, "what an OpenAI client sees of a failed job"),
        ("--lost-as", LostAs, defaults.lost_as, "what becomes of the jobs of a worker that exited"),
        ("--expired-as", ExpiredAs, defaults.expired_as, "what becomes of a job whose ttl is over"),
    ):
        parser.add_argument(name, type=kind, choices=list(kind), default=default, help=text)
    parser.add_argument(
        "--oversize-status",
        type=int,
        default=defaults.oversize_status,
        metavar="STATUS",
        help="what a request above the limits is answered",
    )
    parser.add_argument(
        "--keep-on-disconnect",
        action="store_true",
        help="let the job of an OpenAI client that hung up go on",
    )
    return parser.parse_args(arguments)


def at_least_one(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least one is needed")
    return number


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
        failed_as=given.failed_as,
        lost_as=given.lost_as,
        expired_as=given.expired_as,
        cancel_on_disconnect=not given.keep_on_disconnect,
        oversize_status=given.oversize_status,
        faults=(*slow_link(given.post_delay), *given.fault),
        request_log=given.request_log,
    )


def tell(text: str) -> None:
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
    except OSError as error:
        sys.stderr.write(f"The endpoint can't be served: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
