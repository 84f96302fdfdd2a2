"""Parsing of the command line, and messages about wrong arguments."""

import pytest

from worker.command_line import read_command_line


def test_known_arguments_are_parsed_and_the_sdks_arguments_are_ignored() -> None:
    command = read_command_line(["--serve", "--port", "0", "--rp_log_level", "INFO"])
    assert (command.serve, command.port, command.check) == (True, 0, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prefech"], "unknown argument --prefech: did you mean --prefetch?"),
        (["--chek"], "unknown argument --chek: did you mean --check?"),
        (["prefetch"], "unknown argument prefetch: did you mean --prefetch?"),
        (["--test-input={}"], "unknown argument --test-input={}: did you mean --test_input?"),
        (["--serve", "--zzz"], "unknown argument --zzz;"),
        (["--console"], "--console requires --serve;"),
        (["--port", "http"], "argument --port: invalid int value: 'http'"),
    ],
)
def test_a_wrong_argument_is_refused_with_a_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        read_command_line(arguments)
    assert raised.value.code == 2
    assert capsys.readouterr().err.startswith(message)
