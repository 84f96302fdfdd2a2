"""The command `python -m emulator`: running without workers, options, and printed examples."""

import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import emulator
from emulator import (
    Action,
    Call,
    Emulator,
    ExpiredJobHandling,
    FailedJobHandling,
    Fault,
    LostJobHandling,
)
from emulator.__main__ import fetch_model_name, main, make_options, read_command_line
from emulator.options import NetworkVolume, Options

SOURCE = Path(emulator.__file__).parents[1]
# An option of the worker's command, not of the emulator's.
WORKER_OPTION = "--serve"


def parse(arguments: str) -> Options:
    return make_options(read_command_line(shlex.split(arguments)), api_key=None)


def test_the_command_serves_until_interrupted_and_prints_a_workers_environment() -> None:
    command = [sys.executable, "-m", "emulator", "--port", "0"]
    with subprocess.Popen(command, cwd=SOURCE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(11)]
        words = shlex.split("".join(lines[3:]), comments=True)
        environ = dict(word.split("=", 1) for word in words if word != "export")
        take = environ["RUNPOD_WEBHOOK_GET_JOB"]
        health = take.split("/job-take/")[0] + "/health"
        with urllib.request.urlopen(health) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
    assert process.returncode == 0
    assert take.endswith("/job-take/$ID?gpu=local")  # the shell doesn't expand `$ID`
    assert {name for name in environ if not name.startswith("RUNPOD_")} == set()


def test_a_port_in_use_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        monkeypatch.setattr(sys, "argv", ["emulator", "--port", port])
        assert main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("The endpoint can't be served: ")
    assert port in line


def test_options_are_read_from_the_command_line() -> None:
    assert parse("") == Options(port=8000)
    fault = '{"on": "done", "do": "reset", "calls": 2}'
    options = parse(
        "--port 9 --endpoint mine --post-delay 0.05 --failed-as ok --lost-as requeued --seed 5 "
        "--expired-as deleted --keep-on-disconnect --execution-timeout 7 --gateway-timeout 9 "
        "--idle-timeout 5 "
        f"--fault '{fault}' "
        "--volume euvolume01:EU-RO-1:a/b:c --volume usvolume02:US-KS-2:d"
    )
    assert options == Options(
        port=9,
        endpoint="mine",
        execution_timeout_s=7,
        gateway_timeout_s=9,
        idle_timeout_s=5,
        failed_as=FailedJobHandling.OK,
        lost_as=LostJobHandling.REQUEUED,
        expired_as=ExpiredJobHandling.DELETED,
        cancel_on_disconnect=False,
        faults=(
            Fault(on=Call.STREAM, do=Action.DELAY, delay_s=0.05),
            Fault(on=Call.DONE, do=Action.DELAY, delay_s=0.05),
            Fault(on=Call.DONE, do=Action.RESET, calls=2),
        ),
        seed=5,
        volumes=(
            NetworkVolume("euvolume01", "EU-RO-1", Path("a/b:c")),
            NetworkVolume("usvolume02", "US-KS-2", Path("d")),
        ),
    )
    # Arguments after `--` are the worker's command.
    arguments = read_command_line(["--workers", "2", "--", "python", "-u", "src/handler.py"])
    assert (arguments.workers, arguments.command) == (2, ["python", "-u", "src/handler.py"])


def test_workers_of_a_load_balancing_endpoint_are_not_stopped_when_idle() -> None:
    with pytest.raises(SystemExit):
        parse("--load-balancing --idle-timeout 5")


def test_every_option_in_the_documentation_exists(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (SOURCE.parent / "docs" / "endpoint.md").read_text()
    # The options of another program, which its own tests compare.
    page = re.sub(r"^## Compare it.*?(?=^## |\Z)", "", page, flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page)) - {"--help", WORKER_OPTION}
    with pytest.raises(SystemExit):
        parse("--help")
    listed = capsys.readouterr().out
    assert len(named) > 8
    assert {option for option in named if option not in listed} == set()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--workers 0", "a whole number from 1 to 100, not '0'"),
        ("--post-delay nan", "a number of seconds, not 'nan'"),
        ("--endpoint a/b", "letters, digits, - and _"),
        ("""--fault '{"on": "stream"}'""", "do: Field required"),
        ("--volume euvolume01", "ID:DATA-CENTER:DIR, with an id of 6 to 20 letters and digits"),
        ("--volume vol-1:EU-RO-1:a", "not 'vol-1:EU-RO-1:a'"),
        ("--failed-as never", "invalid choice: 'never'"),
    ],
)
def test_invalid_options_are_refused(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)
    assert message in capsys.readouterr().err


async def test_the_job_that_asks_for_the_model_is_cancelled_after_its_timeout() -> None:
    queue = Emulator().queue
    assert await fetch_model_name(queue, timeout_s=0.01) is None
    (job,) = queue.jobs.values()
    assert job.status == "CANCELLED"


def test_the_url_of_an_ipv6_address_has_brackets() -> None:
    assert Emulator(Options(host="::1", port=9)).url == "http://[::1]:9/v2/local"
