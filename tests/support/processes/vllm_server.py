"""vLLM's own server, without the worker's code.

As a script, this module starts the server, also of vLLM's package for CPUs, whose own command
doesn't start.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.processes.background import BackgroundProcess, start_command
from support.processes.commands import HOME


@dataclass(frozen=True)
class VllmServer(BackgroundProcess):
    """A running server, with its URL."""

    url: str


@contextmanager
def vllm_server(model: Path, log: Path, *options: str) -> Iterator[VllmServer]:
    """Start vLLM's server for a model in a directory."""
    command = [__file__, "--model", str(model), "--host", "127.0.0.1", "--port", "0"]
    command += ["--enforce-eager", "--distributed-executor-backend", "uni", *options]
    with start_command(command, HOME, log) as server:
        server.wait_for_output("Application startup complete.")
        yield VllmServer(server.process, log, f"http://127.0.0.1:{server.listening_port()}")


def main() -> None:
    # vLLM reads them later. Without the second one, an executor has a process of its own on a CPU.
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    from vllm.entrypoints.cli.serve import ServeSubcommand, make_arg_parser  # noqa: PLC0415 - see above
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415 - see above

    ServeSubcommand.cmd(make_arg_parser(FlexibleArgumentParser()).parse_args())


if __name__ == "__main__":
    main()
