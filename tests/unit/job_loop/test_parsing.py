"""A job that can't be parsed fails alone; the other jobs of its take run."""

import contextlib
import json

import pytest
from support.job_loops import run_job_loop

from emulator import Emulator
from job_loop.parsing import find_jobs, parse_response
from worker.errors import InvalidInput

GOOD = {"id": "good", "input": {"prompt": 'a, "[{\\" }]é'}, "webhook": None}
DEEP = "[" * 100_000 + "]" * 100_000
LONG = "1" * 5_000
UNREADABLE = {
    DEEP: "nested too deeply",
    '{"a":' * 100_000 + "1" + "}" * 100_000: "nested too deeply",
    LONG: "more than 4,300 digits",
    f'{{"seed": [-{LONG}]}}': "more than 4,300 digits",
    '"\xff"': "not UTF-8",
}


def as_bytes(text: str) -> bytes:
    return text.encode("latin-1")


@pytest.mark.parametrize("value", UNREADABLE, ids=UNREADABLE.values())
async def test_a_job_that_cannot_be_parsed_has_the_reason_in_place_of_its_input(value: str) -> None:
    good = json.dumps(GOOD)
    bad = f'{{"delayTime": 5, "id" : "b\\u0061d", "input": {value}, "policy": {{"id": "no"}}}}'
    first, second, third = await parse_response(as_bytes(f" [{good}, {bad} ,\n{good}]"))
    assert first == third == GOOD
    assert second["id"] == "bad"
    assert isinstance(second["input"], InvalidInput)
    assert UNREADABLE[value] in second["input"].message
    (alone,) = await parse_response(as_bytes(bad))
    assert (alone["id"], alone["input"].message) == ("bad", second["input"].message)


@pytest.mark.parametrize("bad", [f"[{DEEP}]", f'{{"input": {DEEP}}}', f'{{"id": {LONG}}}', LONG])
async def test_an_unparsable_job_without_an_id_becomes_none(bad: str) -> None:
    assert await parse_response(f"[{json.dumps(GOOD)}, {bad}]".encode()) == [GOOD, None]


@pytest.mark.parametrize("body", [b'[{"id": "a"', b"no JSON", DEEP[:100_000].encode()])
async def test_a_truncated_response_has_no_jobs(body: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert find_jobs(await parse_response(body)) == []


@pytest.mark.parametrize(
    "input_json",
    ['{"a" : 1, "b":{}, "c":[], "d":2}', "[{}, [], [[]], []]"],
    ids=["keys", "brackets"],
)
async def test_a_job_with_too_many_values_is_refused_without_parsing(input_json: str) -> None:
    texts = {"id": "texts", "input": {"prompt": '{"a": {"b": [1, 2]}}, \\"{[{[:::' * 9}}
    bad = f'{{"id": "bad", "input": {input_json}}}'
    found, refused_job = await parse_response(
        f"[{json.dumps(texts)}, {bad}]".encode(), max_values=5
    )
    assert found == texts
    assert refused_job["id"] == "bad"
    assert "more than 5 values" in refused_job["input"].message
    assert await parse_response(bad.encode(), max_values=7) == json.loads(bad)
    (alone,) = await parse_response(bad.encode(), max_values=5)
    assert alone["input"].message == refused_job["input"].message


async def test_a_loop_refuses_a_job_with_too_many_values() -> None:
    async with Emulator() as emulator, run_job_loop(emulator, values=9) as platform:
        refused_job = await platform.run(*({"a": 1} for _ in range(10)))
        answered = await platform.run({"a": 1})
    assert "more than 9 values" in str(refused_job.error)
    assert answered.output == [{"a": 1}]
