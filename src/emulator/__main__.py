"""Serves an endpoint and runs its workers until interrupted: ``python -m emulator``."""

import argparse
import asyncio
import contextlib
import errno
import math
import os
import re
import shlex
import signal
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from pydantic import ValidationError

from emulator.faults import Fault, faults_that_delay_posts
from emulator.fleet import Fleet
from emulator.http.wire import describe_errors
from emulator.job_queue import Queue
from emulator.load_balancer import LoadBalancer
from emulator.options import (
    ExpiredJobHandling,
    FailedJobHandling,
    LostJobHandling,
    NetworkVolume,
    Options,
)
from emulator.server import Emulator

API_KEY_VARIABLE = "EMULATOR_API_KEY"

_EXAMPLE_QUESTION = "What does this worker do?"

_EXAMPLES_TEMPLATE = """\
# curl, the raw form
curl -s {url}/runsync {key_header}-H 'Content-Type: application/json' \\
  -d '{{"input": {{"messages": [{{"role": "user", "content": "{question}"}}], \
"sampling_params": {{"max_tokens": 100, "temperature": 0}}}}}}'

# curl, the OpenAI API, streamed
curl -sN {openai_url}/chat/completions {key_header}-H 'Content-Type: application/json' \\
  -d '{{"model": "{model}", "stream": true, \
"messages": [{{"role": "user", "content": "{question}"}}]}}'

# the openai client
{python} - <<'EOF'
{key_import}from openai import OpenAI
client = OpenAI(base_url="{openai_url}", api_key={key})
messages = [{{"role": "user", "content": "{question}"}}]
for event in client.chat.completions.create(model="{model}", messages=messages, stream=True):
    print(event.choices[0].delta.content or "", end="", flush=True)
print()
EOF

# the runpod client
{python} - <<'EOF'
{key_import}import runpod
runpod.endpoint_url_base = "{api_url}"
endpoint = runpod.Endpoint("{endpoint}", api_key={key})
messages = [{{"role": "user", "content": "{question}"}}]
greedy = {{"max_tokens": 100, "temperature": 0}}
print(endpoint.run_sync({{"messages": messages, "sampling_params": greedy}}))
EOF
"""


def main() -> int:
    arguments = read_command_line(sys.argv[1:])
    try:
        asyncio.run(serve_endpoint(arguments, dict(os.environ)))
    except KeyboardInterrupt:  # Ctrl-C before the handlers of signals were set
        return 128 + signal.SIGINT
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        advice = "; choose another port with --port (make: PORT=...)" if is_taken else ""
        sys.stderr.write(f"The endpoint can't be served: {error}{advice}\n")
        return 1
    return 0


def read_command_line(arguments: list[str]) -> Namespace:
    """Parse the arguments; those for ``Options`` have the names of its fields."""
    defaults = Options()
    parser = argparse.ArgumentParser(
        "emulator",
        description="A local RunPod Serverless platform.",
        epilog=f"{API_KEY_VARIABLE} in the environment: the API key that callers must send.",
    )
    add = parser.add_argument
    add("command", nargs="*", help="command of a worker; without it, workers are started by hand")
    add("--workers", type=integer_type(1, 100), default=1, help="number of workers to start")
    add(
        "--logs",
        type=Path,
        default=Path(".endpoint"),
        metavar="DIR",
        help="directory for the workers' logs",
    )
    add(
        "--grace",
        type=parse_seconds,
        default=10.0,
        metavar="S",
        help="seconds that running jobs get at shutdown",
    )
    add("--host", default=defaults.host)
    add("--port", type=integer_type(0, 65535), default=8000, help="0: any free port")
    add("--worker-port", type=integer_type(0, 65535), default=defaults.worker_port, metavar="PORT")
    add("--endpoint", type=parse_identifier, default=defaults.endpoint, help="the endpoint's id")
    add("--request-log", type=Path, metavar="FILE", help="a line of JSON for each request")
    add(
        "--idle-timeout",
        dest="idle_timeout_s",
        type=parse_seconds,
        default=defaults.idle_timeout_s,
        metavar="S",
        help="stop a worker without a job after S seconds, and start it when jobs wait",
    )
    add(
        "--post-delay",
        type=parse_seconds,
        default=0.0,
        metavar="S",
        help="delay of each POST of a worker",
    )
    add(
        "--fault",
        dest="faults",
        type=parse_fault,
        action="append",
        default=[],
        metavar="JSON",
        help='for example \'{"on": "stream", "do": "status", "calls": 3}\'',
    )
    add(
        "--volume",
        dest="volumes",
        type=parse_volume,
        action="append",
        default=[],
        metavar="ID:DATA-CENTER:DIR",
        help="a network volume; if there are several, each worker gets one of them in turn",
    )
    add("--seed", type=int, default=defaults.seed, metavar="N", help="seed of faults with a share")
    add(
        "--execution-timeout",
        dest="execution_timeout_s",
        type=parse_seconds,
        default=defaults.execution_timeout_s,
        metavar="S",
        help="for jobs whose policy has none",
    )
    add(
        "--gateway-timeout",
        dest="gateway_timeout_s",
        type=parse_seconds,
        default=defaults.gateway_timeout_s,
        metavar="S",
        help="seconds until a response that has not begun becomes a 524",
    )
    for name, choices, default, text in (
        ("--failed-as", FailedJobHandling, defaults.failed_as, "HTTP status for OpenAI clients"),
        ("--lost-as", LostJobHandling, defaults.lost_as, "handling of jobs whose worker exited"),
        ("--expired-as", ExpiredJobHandling, defaults.expired_as, "handling after a job's ttl"),
    ):
        add(name, choices=[str(choice) for choice in choices], default=str(default), help=text)
    add(
        "--oversize-status",
        type=integer_type(400, 599),
        default=defaults.oversize_status,
        metavar="STATUS",
        help="status of the response to a request above the limits",
    )
    add(
        "--keep-on-disconnect",
        dest="cancel_on_disconnect",
        action="store_false",
        help="don't cancel the job of an OpenAI client that hangs up",
    )
    add(
        "--load-balancing",
        action="store_true",
        help="forward requests to workers that serve HTTP on PORT",
    )
    parsed = parser.parse_args(arguments)
    if parsed.load_balancing and parsed.idle_timeout_s is not None:
        parser.error("--idle-timeout: only a queue starts workers when jobs wait")
    return parsed


def integer_type(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isdecimal() and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(f"a whole number from {low} to {high}, not {text!r}")
        return int(text)

    return parse


def parse_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"a number of seconds, not {text!r}")
    return value


def parse_identifier(text: str) -> str:
    if not re.fullmatch(r"[\w-]+", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"letters, digits, - and _, not {text!r}")
    return text


def parse_fault(text: str) -> Fault:
    try:
        return Fault.model_validate_json(text)
    except ValidationError as error:
        raise argparse.ArgumentTypeError(describe_errors(error)) from error


def parse_volume(text: str) -> NetworkVolume:
    match = re.fullmatch(r"([A-Za-z0-9]{6,20}):([\w-]+):(.+)", text, re.ASCII)
    if not match:
        expected = "ID:DATA-CENTER:DIR, with an id of 6 to 20 letters and digits"
        raise argparse.ArgumentTypeError(f"{expected}, not {text!r}")
    return NetworkVolume(match[1], match[2], Path(match[3]))


def make_options(arguments: Namespace, api_key: str | None) -> Options:
    names = {field.name for field in fields(Options)}
    values = {name: value for name, value in vars(arguments).items() if name in names}
    values |= {
        "failed_as": FailedJobHandling(arguments.failed_as),
        "lost_as": LostJobHandling(arguments.lost_as),
        "expired_as": ExpiredJobHandling(arguments.expired_as),
        "faults": (*faults_that_delay_posts(arguments.post_delay), *arguments.faults),
        "volumes": tuple(arguments.volumes),
    }
    return Options(**values, api_key=api_key)


def print_line(text: str) -> None:
    # If the terminal was closed, continue without an error: the workers must still be stopped.
    with contextlib.suppress(OSError):
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


async def serve_endpoint(arguments: Namespace, environ: dict[str, str]) -> None:
    # SIGINT, SIGTERM or SIGHUP stops the endpoint, and a further one stops it immediately.
    stop, stop_now = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (stop_now if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    api_key = environ.pop(API_KEY_VARIABLE, None) or None
    if arguments.request_log is not None:
        arguments.request_log.parent.mkdir(parents=True, exist_ok=True)
    options = make_options(arguments, api_key)
    if arguments.load_balancing:
        async with LoadBalancer(options) as server:
            print_line(f"The endpoint: {server.url}\nOpenAI's API: {server.url}/v1")
            arguments.logs.mkdir(parents=True, exist_ok=True)
            async with Fleet(
                server, arguments.command, environ, arguments.logs, print_line
            ) as fleet:
                fleet.start_workers(arguments.workers)
                await fleet.run_until_event(stop)
                await fleet.drain(arguments.grace, stop_now)
        return
    async with Emulator(options) as emulator:
        print_line(f"The console: {emulator.root_url}/")
        print_line(f"The endpoint: {emulator.url}\nOpenAI's API: {emulator.openai_url}")
        if not arguments.command:
            print_line("# A worker started with this environment serves it:")
            for name, value in emulator.worker_environ().items():
                print_line(f"export {name}={shlex.quote(value)}")
            await stop.wait()
            return
        arguments.logs.mkdir(parents=True, exist_ok=True)
        async with Fleet(emulator, arguments.command, environ, arguments.logs, print_line) as fleet:
            fleet.start_workers(arguments.workers)
            print_line("Requests wait until a worker is ready. Ctrl-C stops the endpoint.")
            examples_task = asyncio.create_task(print_examples_when_ready(emulator, fleet))
            await fleet.run_until_event(stop)
            examples_task.cancel()
            running = emulator.queue.health()["jobs"]["inProgress"]
            print_line(
                f"\nStopping; running jobs ({running}) get {arguments.grace:g} s. "
                "Ctrl-C again: stop immediately."
            )
            await fleet.drain(arguments.grace, stop_now)


async def print_examples_when_ready(emulator: Emulator, fleet: Fleet) -> None:
    """Print requests as shell commands, which read a required key from the environment."""
    await fleet.ready.wait()
    has_key = emulator.options.api_key is not None
    text = _EXAMPLES_TEMPLATE.format(
        api_url=emulator.api_url,
        endpoint=emulator.options.endpoint,
        url=emulator.url,
        openai_url=emulator.openai_url,
        model=await fetch_model_name(emulator.queue) or "<MODEL>",
        question=_EXAMPLE_QUESTION,
        python=shlex.quote(sys.executable),
        key='os.environ["EMULATOR_API_KEY"]' if has_key else '"any"',
        key_import="import os\n" if has_key else "",
        key_header='-H "Authorization: Bearer $EMULATOR_API_KEY" ' if has_key else "",
    )
    print_line(f"Try it in another terminal:\n\n{text}")


async def fetch_model_name(queue: Queue, timeout_s: float = 10.0) -> str | None:
    """Get the model's name from a worker; None without an OpenAI API or an answer in time."""
    job = queue.submit({"input": {"openai_route": "/v1/models", "openai_input": None}}, sync=True)
    if not await job.wait_for_end(timeout_s):
        queue.cancel(job)
    try:
        return str(job.output[0]["data"][0]["id"])
    except (IndexError, KeyError, TypeError):
        return None


if __name__ == "__main__":
    sys.exit(main())
