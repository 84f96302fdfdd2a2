"""Faults on demand that make no sense."""

import pytest
from support.processes.emulator_client import emulator_client


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"on": "stream"}, "do: Field required"),
        ({"do": "reset"}, "on: Field required"),
        ({"on": "ping", "do": "reset"}, "on: "),
        ({"on": "stream", "do": "explode"}, "do: "),
        ({"on": "stream", "do": "status", "status": 200}, "status: "),
        ({"on": "stream", "do": "status", "status": 600}, "status: "),
        ({"on": "stream", "do": "reset", "calls": 0}, "calls: "),
        ({"on": "stream", "do": "reset", "seconds": 0}, "seconds: "),
        ({"on": "stream", "do": "delay", "delay_s": -1}, "delay_s: "),
        ({"on": "stream", "do": "delay"}, "a delay needs it"),
        ({"on": "stream", "do": "reset", "delay_s": 1}, "delay_s goes with a delay"),
        ({"on": "stream", "do": "reset", "status": 503}, "a status is what"),
        ({"on": "stream", "do": "reset", "share": 0}, "share: "),
        ({"on": "stream", "do": "reset", "share": 1.1}, "share: "),
        ({"on": "done", "do": "duplicate"}, "only a take can be duplicated"),
        ({"on": "stream", "do": "reset", "wait": 1}, "wait: "),
        ([], "must be a JSON object"),
    ],
)
async def test_a_fault_that_makes_no_sense_is_refused_with_what_is_wrong(
    fault: object, message: str
) -> None:
    async with emulator_client() as client:
        status, answer = await client.request("POST", "/control/faults", json=fault)
        assert (status, message in answer["error"]) == (400, True)
        assert await client.get("/control/faults") == {"faults": []}
