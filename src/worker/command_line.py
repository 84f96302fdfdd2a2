"""Parses the worker's command line; suggests the nearest known argument for an unknown one."""

import argparse
from argparse import Namespace
from collections.abc import Sequence
from typing import NoReturn

from worker.validation import find_similar_names

# Flags that the SDK reads from the same command line.
SDK_FLAGS = (
    "--rp_log_level",
    "--rp_debugger",
    "--rp_api_port",
    "--rp_api_concurrency",
    "--rp_api_host",
)
_SDK_SWITCHES = frozenset({"--rp_debugger"})


class _CommandLineParser(argparse.ArgumentParser):
    """An argument parser that exits with a one-line message, without argparse's usage text."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{message}; --help lists all arguments\n")


def read_command_line(arguments: Sequence[str] | None = None) -> Namespace:
    """Parse the arguments, by default the process's own; exit with status 2 if they are invalid."""
    parser = _CommandLineParser(
        description="A worker for language models on RunPod Serverless.", allow_abbrev=False
    )
    parser.add_argument("--test_input", metavar="JSON", help="answer this job and exit")
    parser.add_argument("--rp_serve_api", action="store_true", help="serve the SDK's own test API")
    parser.add_argument("--check", action="store_true", help="say whether the worker would start")
    parser.add_argument("--gpu", default="", help="GPUs for --check: ADA_24, A40x2, or all")
    parser.add_argument("--prices", default="", help="file with the GPUs' prices per hour")
    parser.add_argument("--prefetch", action="store_true", help="download the model, then exit")
    parser.add_argument("--train", action="store_true", help="train adapters, without an engine")
    parser.add_argument("--serve", action="store_true", help="serve the OpenAI API over HTTP")
    parser.add_argument("--console", action="store_true", help="with --serve: a page for a browser")
    # Other addresses (0.0.0.0 in a pod) are reachable from other machines, and may need a key.
    parser.add_argument("--host", default="127.0.0.1", help="where --serve listens")
    parser.add_argument("--port", type=int, help="where --serve listens; 0: any; unset: PORT, 8000")
    for flag in SDK_FLAGS:
        kind = "store_true" if flag in _SDK_SWITCHES else "store"
        parser.add_argument(flag, action=kind, help=argparse.SUPPRESS)
    known, unknown = parser.parse_known_args(arguments)
    if unknown:
        flag = "--" + unknown[0].partition("=")[0].lstrip("-").replace("-", "_")
        flags = [name for action in parser._actions for name in action.option_strings]
        near = find_similar_names(flag, flags)
        hint = f": did you mean {near[0]}?" if near else ""
        parser.error(f"unknown argument {unknown[0]}{hint}")
    if (known.gpu and not known.check) or (known.prices and not known.gpu):
        parser.error("--gpu requires --check, and --prices requires --gpu")
    if known.console and not known.serve:
        parser.error("--console requires --serve")
    return known
