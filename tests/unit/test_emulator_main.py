"""`python -m emulator`."""

import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import emulator
from emulator import FailedAs
from emulator.__main__ import parse_options


def test_it_serves_until_interrupted_and_prints_what_a_worker_needs() -> None:
    source = Path(emulator.__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-m", "emulator", "--port", "0"],
        cwd=source,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(10)]
        words = shlex.split("".join(lines), comments=True)
        environ = dict(word.split("=", 1) for word in words if word != "export")
        take = environ["RUNPOD_WEBHOOK_GET_JOB"]
        health = take.split("/job-take/")[0] + "/health"
        with urllib.request.urlopen(health) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
    assert process.returncode == 0
    assert take.endswith("/job-take/$ID?gpu=local")  # the shell left `$ID` alone
    assert {name for name in environ if not name.startswith("RUNPOD_")} == set()


def test_options_can_be_given_on_the_command_line() -> None:
    arguments = "--port 9 --endpoint mine --post-delay 0.05 --failed-as ok"
    options = parse_options(arguments.split())
    assert (options.port, options.endpoint, options.post_delay_s) == (9, "mine", 0.05)
    assert options.failed_as is FailedAs.OK


def test_the_documented_port_is_the_default() -> None:
    assert parse_options([]).port == 8000
