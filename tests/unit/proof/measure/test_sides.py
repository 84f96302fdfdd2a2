"""A side that does not start is an error with its output."""

import sys
import time

import pytest

from proof.measure.processes import Lost, run_process
from proof.measure.sides import read_output, start_side

FAILS = (
    "print('loading'); print('start-up: import    7.00 s'); print('no memory'); raise SystemExit(3)"
)
COMMAND = (sys.executable, "-c", FAILS)


async def test_an_exit_ends_the_wait_for_the_first_token() -> None:
    with pytest.raises(Lost, match="exited with status 3 before") as raised:
        async with start_side(COMMAND, {}, "http://127.0.0.1:9/v1", 600):
            pass
    assert raised.value.output[-1] == "no memory"


async def test_phases_are_read_from_the_output() -> None:
    began = time.monotonic()
    async with run_process(COMMAND, {}) as process, read_output(process, began) as output:
        await output.ended.wait()
    phase = output.phases["import"]
    assert phase["end"] - phase["begin"] == pytest.approx(7)
    assert list(output.last_lines) == ["loading", "start-up: import    7.00 s", "no memory"]
