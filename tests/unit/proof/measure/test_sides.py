"""A side that does not start is an error with its output."""

import sys
import time

import pytest

from proof.measure import sides
from proof.measure.output import read_output
from proof.measure.processes import Lost, run_process

FAILS = (
    "print('loading'); print('start-up: import    7.00 s'); print('no memory'); raise SystemExit(3)"
)


async def test_an_exit_ends_the_wait_for_the_first_token() -> None:
    command = (sys.executable, "-c", FAILS)
    async with run_process(command, {}) as process, read_output(process, 0.0) as output:
        with pytest.raises(Lost, match="exited with status 3 before") as raised:
            await sides._time_start("http://127.0.0.1:9/v1", process, 600, 0.0, output)
    assert raised.value.output[-1] == "no memory"


async def test_phases_are_read_from_the_output() -> None:
    command = (sys.executable, "-c", FAILS)
    began = time.monotonic()
    async with run_process(command, {}) as process, read_output(process, began) as output:
        await output.ended.wait()
    phase = output.phases["import"]
    assert phase["end"] - phase["begin"] == pytest.approx(7)
    assert list(output.last_lines) == ["loading", "start-up: import    7.00 s", "no memory"]
