"""`python -m emulator`: serves an endpoint until interrupted, with the workers behind it."""

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from argparse import Namespace

from emulator.command_line import KEY_VARIABLE, read_command_line, to_options
from emulator.examples import examples, fetch_model_name
from emulator.fleet import Fleet
from emulator.load_balancer import LoadBalancer
from emulator.server import Emulator


def say(text: str) -> None:
    # Without an error if the terminal was closed: the workers must still be stopped.
    with contextlib.suppress(OSError):
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


class Interrupts:
    """SIGINT, SIGTERM and SIGHUP: `first` is set by the first one, `second` by any later one."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._arrived)

    def _arrived(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


async def serve(arguments: Namespace, environ: dict[str, str]) -> None:
    """Serve until interrupted.

    Raises:
        OSError: the port is taken, a file can't be written or the workers' command can't be run.
    """
    interrupts = Interrupts()
    api_key = environ.pop(KEY_VARIABLE, None) or None
    if arguments.request_log is not None:
        arguments.request_log.parent.mkdir(parents=True, exist_ok=True)
    options = to_options(arguments, api_key)
    if arguments.load_balancing:
        async with LoadBalancer(options) as balancer:
            say(f"The endpoint: {balancer.url}\nOpenAI's API: {balancer.url}/v1")
            arguments.logs.mkdir(parents=True, exist_ok=True)
            async with Fleet(balancer, arguments.command, environ, arguments.logs, say) as fleet:
                fleet.start(arguments.workers)
                await fleet.run_until(interrupts.first)
                await fleet.drain(arguments.grace, interrupts.second)
        return
    async with Emulator(options) as emulator:
        say(f"The endpoint: {emulator.url}\nOpenAI's API: {emulator.openai_url}")
        if not arguments.command:
            say(worker_exports(emulator))
            await interrupts.first.wait()
            return
        arguments.logs.mkdir(parents=True, exist_ok=True)
        async with Fleet(emulator, arguments.command, environ, arguments.logs, say) as fleet:
            fleet.start(arguments.workers)
            say("Requests wait until a worker is ready. Ctrl-C stops the endpoint.")
            showing = asyncio.create_task(show_examples(emulator, fleet))
            await fleet.run_until(interrupts.first)
            showing.cancel()
            running = emulator.queue.health()["jobs"]["inProgress"]
            say(
                f"\nStopping; running jobs ({running}) get {arguments.grace:g} s. "
                "Ctrl-C again: stop at once."
            )
            await fleet.drain(arguments.grace, interrupts.second)


def worker_exports(emulator: Emulator) -> str:
    """Return the environment of a worker that is started by hand, as lines for a shell."""
    exports = (
        f"export {name}={shlex.quote(value)}" for name, value in emulator.worker_environ().items()
    )
    return "\n".join(["# A worker started with this environment serves it:", *exports])


async def show_examples(emulator: Emulator, fleet: Fleet) -> None:
    """Print the examples when a worker is ready."""
    await fleet.ready.wait()
    text = examples(
        api_url=emulator.api_url,
        endpoint=emulator.options.endpoint,
        model=await fetch_model_name(emulator.queue),
        with_key=emulator.options.api_key is not None,
        python=shlex.quote(sys.executable),
    )
    say(f"Try it in another terminal:\n\n{text}")


def main() -> int:
    arguments = read_command_line(sys.argv[1:])
    try:
        asyncio.run(serve(arguments, dict(os.environ)))
    except KeyboardInterrupt:  # before `Interrupts` handles it
        return 128 + signal.SIGINT
    except OSError as error:
        sys.stderr.write(f"The endpoint can't be served: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
