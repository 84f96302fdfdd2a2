"""`python -m emulator`: serves an endpoint until interrupted, with the workers behind it."""

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from argparse import Namespace

from emulator.command_line import KEY_VARIABLE, read_command_line, to_options
from emulator.fleet import Fleet
from emulator.load_balancer import LoadBalancer
from emulator.server import Emulator
from emulator.state.job_queue import Queue

_MODEL_NAME_S = 10.0  # how long to wait for the model's name
_QUESTION = "What does this worker do?"

_TEMPLATE = """\
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


def examples(*, api_url: str, endpoint: str, model: str | None, with_key: bool, python: str) -> str:
    """Return commands for a shell. The API key stays a variable's name: it is not printed."""
    url = f"{api_url}/{endpoint}"
    return _TEMPLATE.format(
        api_url=api_url,
        endpoint=endpoint,
        url=url,
        openai_url=f"{url}/openai/v1",
        model=model or "<MODEL>",
        question=_QUESTION,
        python=python,
        key='os.environ["EMULATOR_API_KEY"]' if with_key else '"any"',
        key_import="import os\n" if with_key else "",
        key_header='-H "Authorization: Bearer $EMULATOR_API_KEY" ' if with_key else "",
    )


async def fetch_model_name(queue: Queue, wait_s: float = _MODEL_NAME_S) -> str | None:
    """Return the name of the model that the workers serve; None if they have no OpenAI API."""
    job = queue.submit({"input": {"openai_route": "/v1/models", "openai_input": None}}, sync=True)
    if not await job.wait_ended(wait_s):
        queue.cancel(job)
    try:
        return str(job.output[0]["data"][0]["id"])
    except (IndexError, KeyError, TypeError):
        return None


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
