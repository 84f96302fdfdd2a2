"""Serves an endpoint and runs its workers until interrupted: ``python -m emulator``."""

import asyncio
import contextlib
import errno
import os
import shlex
import signal
import sys
from argparse import Namespace

from emulator.command_line import API_KEY_VARIABLE, make_options, read_command_line
from emulator.fleet import Fleet
from emulator.job_queue import Queue
from emulator.load_balancer import LoadBalancer
from emulator.server import Emulator

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


if __name__ == "__main__":
    sys.exit(main())
