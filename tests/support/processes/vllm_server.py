"""vLLM's own server, without the worker's code.

As a script, this module starts the server, also of vLLM's package for CPUs, whose own command
doesn't start.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.processes.background import BackgroundProcess, start_command
from support.processes.commands import HOME


class VllmServer(BackgroundProcess):
    """A server that starts or runs."""

    @property
    def url(self) -> str:
        """The server's URL; waits until the server has started."""
        self.wait_for_output("Application startup complete.")
        return f"http://127.0.0.1:{self.listening_port()}"


@contextmanager
def vllm_server(model: Path, log: Path, *options: str) -> Iterator[VllmServer]:
    """Start vLLM's server for a model in a directory."""
    command = [__file__, "--model", str(model), "--host", "127.0.0.1", "--port", "0"]
    command += ["--enforce-eager", "--distributed-executor-backend", "uni", *options]
    with start_command(command, HOME, log) as server:
        yield VllmServer(server.process, log)


def main() -> None:
    # vLLM reads them later. Without the second one, an executor has a process of its own on a CPU.
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    from vllm.entrypoints.cli.serve import ServeSubcommand, make_arg_parser  # noqa: PLC0415 - see above
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415 - see above

    ServeSubcommand.cmd(make_arg_parser(FlexibleArgumentParser()).parse_args())


if __name__ == "__main__":
    main()
