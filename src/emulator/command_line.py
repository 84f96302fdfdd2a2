"""Command-line options of ``python -m emulator``."""

import argparse
import math
import re
from argparse import Namespace
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from pydantic import ValidationError

from emulator.faults import Fault, faults_that_delay_posts
from emulator.http.wire import describe_errors
from emulator.options import (
    ExpiredJobHandling,
    FailedJobHandling,
    LostJobHandling,
    NetworkVolume,
    Options,
)

API_KEY_VARIABLE = "EMULATOR_API_KEY"


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
