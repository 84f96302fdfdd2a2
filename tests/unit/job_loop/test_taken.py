"""A job that can't be read fails alone, and those that came with it run."""

import json
from typing import Any

import pytest
from aiohttp import web
from support.job_loops import looping, serving, session

from emulator import Emulator
from job_loop import Wire
from job_loop.loop import _jobs_in
from job_loop.polls import Polls
from job_loop.taken import parsed
from job_loop.wire import Urls
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
async def test_a_job_that_can_not_be_read_has_the_reason_in_place_of_its_input(value: str) -> None:
    good = json.dumps(GOOD)
    bad = f'{{"delayTime": 5, "id" : "b\\u0061d", "input": {value}, "policy": {{"id": "no"}}}}'
    first, second, third = await parsed(as_bytes(f" [{good}, {bad} ,\n{good}]"))
    assert first == third == GOOD
    assert second["id"] == "bad"
    assert isinstance(second["input"], InvalidInput)
    assert UNREADABLE[value] in second["input"].message
    (alone,) = await parsed(as_bytes(bad))
    assert (alone["id"], alone["input"].message) == ("bad", second["input"].message)


@pytest.mark.parametrize("bad", [f"[{DEEP}]", f'{{"input": {DEEP}}}', f'{{"id": {LONG}}}', LONG])
async def test_without_an_id_nobody_can_be_told(bad: str) -> None:
    assert await parsed(f"[{json.dumps(GOOD)}, {bad}]".encode()) == [GOOD, None]


@pytest.mark.parametrize(
    "body", [b"[", b"[{}", b'[{"id": "a"', b"no JSON", DEEP[:100_000].encode()]
)
async def test_an_answer_that_breaks_off_is_no_answer(body: bytes) -> None:
    found: Any = None
    try:
        found = await parsed(body)
    except ValueError:
        return
    assert _jobs_in(found) == []


@pytest.mark.parametrize(
    "many", ['{"a" : 1, "b":{}, "c":[], "d":2}', "[{}, [], [[]], []]"], ids=["keys", "brackets"]
)
async def test_a_job_of_too_many_values_is_refused_and_not_parsed(many: str) -> None:
    texts = {"id": "texts", "input": {"prompt": '{"a": {"b": [1, 2]}}, \\"{[{[:::' * 9}}
    bad = f'{{"id": "bad", "input": {many}}}'
    found, refused = await parsed(f"[{json.dumps(texts)}, {bad}]".encode(), most_values=5)
    assert found == texts
    assert refused["id"] == "bad"
    assert "more than 5 values (MAX_INPUT_VALUES)" in refused["input"].message
    assert await parsed(bad.encode(), most_values=7) == json.loads(bad)
    (alone,) = await parsed(bad.encode(), most_values=5)
    assert alone["input"].message == refused["input"].message


async def test_a_take_brings_the_jobs_that_can_be_read_and_the_ids_of_the_others() -> None:
    async def take(_: web.Request) -> web.Response:
        return web.Response(text=f'[{{"id": "bad", "input": {DEEP}}}, {json.dumps(GOOD)}]')

    async with serving(web.get("/job-take-batch/w", take)) as url:
        wire = Wire(Urls(f"{url}/job-take/w?", "", ""), session)
        polls = Polls(wire, _jobs_in, vital=True)
        async with wire:
            jobs = await polls.next(wire.urls.next_jobs(2, busy=False))
    assert [job["id"] for job in jobs] == ["bad", "good"]


async def test_a_loop_refuses_a_job_of_more_values_than_it_may_have() -> None:
    async with Emulator() as emulator, looping(emulator, values=9) as platform:
        refused = await platform.run(*({"a": 1} for _ in range(10)))
        answered = await platform.run({"a": 1})
    assert "more than 9 values (MAX_INPUT_VALUES)" in str(refused.error)
    assert answered.output == [{"a": 1}]
