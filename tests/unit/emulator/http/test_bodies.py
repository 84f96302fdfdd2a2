"""Bodies that can't be read, or could not be serialized again."""

import pytest
from support.processes.emulator_client import emulator_client

DEEP = b'{"input": ' + b"[" * 5000 + b"]" * 5000 + b"}"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(DEEP, id="deep"),
        pytest.param(b'{"input": NaN}', id="NaN"),
        pytest.param(b'{"input": -Infinity}', id="infinite"),
        pytest.param(b'{"input": "\\ud83d"}', id="half a surrogate pair"),
    ],
)
async def test_a_body_that_is_no_json_is_refused_wherever_it_comes_in(body: bytes) -> None:
    async with emulator_client() as client:
        job = await client.start()
        paths = (
            *("/run", "/runsync", "/openai/v1/completions"),
            *(f"/job-stream/w/{job}", f"/job-done/w/{job}", "/control/faults"),
        )
        for path in paths:
            status, answer = await client.request("POST", path, data=body)
            assert status == 400
            assert "the body " in answer["error"]


@pytest.mark.parametrize("depth", [50, 190])
async def test_an_input_that_is_only_rather_deep_reaches_its_worker(depth: int) -> None:
    async with emulator_client() as client:
        nested: list[object] = []
        for _ in range(depth):
            nested = [nested]
        await client.run(nested)
        assert (await client.get("/job-take/w"))["input"] == nested


async def test_a_body_that_is_not_encoded_as_it_says_is_refused() -> None:
    async with emulator_client() as client:
        answer = await client.raw("POST", "/run", {"input": 1}, b"Content-Encoding: gzip\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"the body can't be read" in answer
