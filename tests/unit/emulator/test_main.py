"""The command `python -m emulator`: without workers, and its options."""

import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import emulator
from emulator import ExpiredAs, FailedAs, LostAs, slow_link
from emulator.command_line import read_command_line, to_options
from emulator.options import Options

SOURCE = Path(emulator.__file__).parents[1]


def read(arguments: str) -> Options:
    return to_options(read_command_line(shlex.split(arguments)), api_key=None)


def test_it_serves_until_interrupted_and_prints_what_a_worker_needs() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "emulator", "--port", "0"],
        cwd=SOURCE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(10)]
        words = shlex.split("".join(lines[2:]), comments=True)
        environ = dict(word.split("=", 1) for word in words if word != "export")
        take = environ["RUNPOD_WEBHOOK_GET_JOB"]
        health = take.split("/job-take/")[0] + "/health"
        with urllib.request.urlopen(health) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
    assert process.returncode == 0
    assert take.endswith("/job-take/$ID?gpu=local")  # the shell left `$ID` alone
    assert {name for name in environ if not name.startswith("RUNPOD_")} == set()


def test_a_port_that_is_taken_is_said_in_a_line() -> None:
    command = [sys.executable, "-m", "emulator", "--port"]
    with subprocess.Popen([*command, "0"], cwd=SOURCE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        port = first.stdout.readline().split(":")[3].split("/")[0]
        second = subprocess.run(
            [*command, port], cwd=SOURCE, check=False, capture_output=True, text=True
        )
        first.send_signal(signal.SIGTERM)
    assert second.returncode == 1
    assert second.stderr.startswith("The endpoint can't be served: ")
    assert port in second.stderr
    assert len(second.stderr.splitlines()) == 1


def test_options_can_be_given_on_the_command_line() -> None:
    fault = '{"on": "done", "do": "reset", "calls": 2}'
    options = read(
        "--port 9 --endpoint mine --post-delay 0.05 --failed-as ok --lost-as requeued --seed 5 "
        f"--expired-as deleted --keep-on-disconnect --execution-timeout 7 --fault '{fault}'"
    )
    assert (options.port, options.endpoint, options.execution_timeout_s) == (9, "mine", 7)
    assert options.failed_as is FailedAs.OK
    assert options.lost_as is LostAs.REQUEUED
    assert options.expired_as is ExpiredAs.DELETED
    assert not options.cancel_on_disconnect
    assert options.faults[:2] == slow_link(0.05)
    assert (options.faults[2].calls, options.seed) == (2, 5)


# An option of the worker's command, not of the platform's.
WORKERS = "--serve"


def test_every_option_that_the_documentation_names_is_there() -> None:
    page = (SOURCE.parent / "docs" / "endpoint.md").read_text()
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page)) - {"--help", WORKERS}
    command = [sys.executable, "-m", "emulator", "--help"]
    listed = subprocess.run(command, cwd=SOURCE, check=True, capture_output=True, text=True).stdout
    assert len(named) > 8
    assert {option for option in named if option not in listed} == set()


def test_what_is_not_given_is_as_in_the_library() -> None:
    assert read("--port 0") == Options()


def test_the_documented_port_is_the_default() -> None:
    assert read("").port == 8000


def test_the_command_of_a_worker_keeps_its_own_options() -> None:
    arguments = read_command_line(["--workers", "2", "--", "python", "-u", "src/handler.py"])
    assert (arguments.workers, arguments.command) == (2, ["python", "-u", "src/handler.py"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--workers 0", "a whole number from 1 to 100, not '0'"),
        ("--port 70000", "a whole number from 0 to 65535"),
        ("--post-delay nan", "a number of seconds, not 'nan'"),
        ("--grace=-1", "a number of seconds"),
        ("--endpoint a/b", "letters, digits, - and _"),
        ("""--fault '{"on": "stream"}'""", "do: Field required"),
        ("--fault nonsense", "Invalid JSON"),
        ("--failed-as never", "invalid choice: 'never'"),
    ],
)
def test_a_wrong_option_is_refused_with_the_reason(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read(arguments)
    assert message in capsys.readouterr().err
