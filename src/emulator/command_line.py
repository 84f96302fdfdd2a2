"""The command line of `python -m emulator`."""

import argparse
import math
import re
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from emulator.faults import Fault, slow_link
from emulator.http.wire import describe
from emulator.options import ExpiredAs, FailedAs, LostAs, Options

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
    add("--workers", type=whole_number(1, 100), default=1, help="how many to start")
    add("--logs", type=Path, default=Path(".endpoint"), metavar="DIR", help="of the workers")
    add("--grace", type=seconds, default=10.0, metavar="S", help="for running jobs at the end")
    add("--host", default=defaults.host)
    add("--port", type=whole_number(0, 65535), default=8000, help="0: any free one")
    add("--worker-port", type=whole_number(0, 65535), default=defaults.worker_port, metavar="PORT")
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
    add("--seed", type=int, default=defaults.seed, metavar="N", help="of faults with a share")
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
        type=whole_number(400, 599),
        default=defaults.oversize_status,
        metavar="STATUS",
        help="what a request above the limits is answered",
    )
    add(
        "--keep-on-disconnect",
        action="store_true",
        help="let the job of an OpenAI client that hung up go on",
    )
    add(
        "--load-balancing",
        action="store_true",
        help="pass requests straight on to workers that serve HTTP on PORT",
    )
    return parser.parse_args(arguments)


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Return a type for argparse: a whole number within the bounds."""

    def read(text: str) -> int:
        if not (text.isdecimal() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return read


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"a number of seconds, not {text!r}")
    return value


def identifier(text: str) -> str:
    if not re.fullmatch(r"[\w-]+", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"letters, digits, - and _, not {text!r}")
    return text


def read_fault(text: str) -> Fault:
    try:
        return Fault.model_validate_json(text)
    except ValidationError as error:
        raise argparse.ArgumentTypeError(describe(error)) from error


def to_options(arguments: Namespace, api_key: str | None) -> Options:
    return Options(
        host=arguments.host,
        port=arguments.port,
        worker_port=arguments.worker_port,
        endpoint=arguments.endpoint,
        api_key=api_key,
        execution_timeout_s=arguments.execution_timeout,
        failed_as=FailedAs(arguments.failed_as),
        lost_as=LostAs(arguments.lost_as),
        expired_as=ExpiredAs(arguments.expired_as),
        cancel_on_disconnect=not arguments.keep_on_disconnect,
        oversize_status=arguments.oversize_status,
        faults=(*slow_link(arguments.post_delay), *arguments.fault),
        seed=arguments.seed,
        request_log=arguments.request_log,
    )
