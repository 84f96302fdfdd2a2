"""The maximum tokens of a choice that the operator sets, on every path that generates."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from model.conftest import launch_engine
from support.batches import line, run_batch
from support.engine.scripted import CHAT, failure
from vllm import SamplingParams

from worker.app import Worker
from worker.engine import Engines
from worker.record import JobRecord
from worker.settings import Settings

# Limits, each with the worker's setting and vLLM's option that set it.
LIMITS: dict[int, tuple[dict[str, Any], dict[str, str]]] = {
    7: ({"max_output_tokens": 7}, {}),
    5: ({}, {"OVERRIDE_GENERATION_CONFIG": '{"max_new_tokens": 5}'}),
}
TEXT = "Count to ten."
MESSAGES = [{"role": "user", "content": TEXT}]
# Other routes do not have ``ignore_eos``; the model's answers there are longer than the limits.
LONG = {"ignore_eos": True, "temperature": 0}
BEAM = {"ignore_eos": True, "use_beam_search": True, "n": 2}


@dataclass(frozen=True)
class Form:
    """A form of a request.

    Attributes:
        payload: The input of a job, without a maximum number of tokens.
        place: Keys of the object in the input that has the maximum.
        key: Key of the maximum.
        choices: Number of choices that are generated.
        streams: Values of the key ``stream`` that the form can have.
        needs_maximum: Whether requests without a maximum are refused.
    """

    payload: dict[str, Any]
    place: tuple[str, ...] = ("sampling_params",)
    key: str = "max_tokens"
    choices: int = 1
    streams: tuple[bool, ...] = (False, True)
    needs_maximum: bool = False

    def make_input(self, max_tokens: int | None, *, stream: bool) -> dict[str, Any]:
        """Return the input of a job for ``max_tokens`` tokens; None leaves the number out."""
        payload = dict(self.payload)
        holder = payload
        for name in self.place:
            holder[name] = dict(holder[name])
            holder = holder[name]
        if max_tokens is not None:
            holder[self.key] = max_tokens
        (holder if "openai_input" in self.place else payload)["stream"] = stream
        return payload


def route(path: str, body: dict[str, Any], key: str = "max_tokens", **options: Any) -> Form:
    payload = {"openai_route": path, "openai_input": body}
    return Form(payload, ("openai_input",), key, **options)


FORMS = {
    "raw prompt": Form({"prompt": TEXT, "sampling_params": LONG}),
    "raw messages": Form({"messages": MESSAGES, "sampling_params": LONG}),
    "raw choices": Form(
        {"prompt": TEXT, "sampling_params": {"ignore_eos": True, "n": 3}}, choices=3
    ),
    "raw best_of": Form({"prompt": TEXT, "sampling_params": {"ignore_eos": True, "best_of": 2}}),
    "raw beam search": Form({"prompt": TEXT, "sampling_params": BEAM}, choices=2),
    "prompts": Form({"prompts": [TEXT] * 2, "sampling_params": LONG}, choices=2),
    "messages_list": Form({"messages_list": [MESSAGES] * 2, "sampling_params": LONG}, choices=2),
    "beam search of a list": Form({"prompts": [TEXT], "sampling_params": BEAM}, choices=2),
    "format llm_engine": Form({"format": "llm_engine", "prompt": TEXT}, (), "max_new_tokens"),
    "chat": route(CHAT, {"messages": MESSAGES, **LONG}),
    "chat, newer key": route(CHAT, {"messages": MESSAGES, **LONG}, "max_completion_tokens"),
    "chat, beam search": route(CHAT, {"messages": MESSAGES, **BEAM}, choices=2, streams=(False,)),
    "completions": route("/v1/completions", {"prompt": [TEXT] * 2, **LONG}, choices=2),
    "completions, beam search": route(
        "/v1/completions", {"prompt": TEXT, **BEAM}, choices=2, streams=(False,)
    ),
    "responses": route("/v1/responses", {"input": TEXT, "temperature": 0}, "max_output_tokens"),
    "messages": route("/v1/messages", {"messages": MESSAGES, "temperature": 0}, needs_maximum=True),
    "llm engine": route(
        "/v1/llm/completions-sync", {"prompt": TEXT}, "max_new_tokens", streams=(False,)
    ),
    "llm engine stream": route(
        "/v1/llm/completions-stream", {"prompt": TEXT}, "max_new_tokens", streams=(False,)
    ),
}


@pytest.fixture(scope="module", params=[7, pytest.param(5, marks=pytest.mark.slow)])
def limit(request: pytest.FixtureRequest) -> int:
    """Return the maximum tokens of a choice."""
    maximum: int = request.param
    return maximum


@pytest.fixture(scope="module")
def limited_worker(
    limit: int, settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worker]:
    values, options = LIMITS[limit]
    values = {"files_path": tmp_path_factory.mktemp("volume"), **values}
    settings = settings.model_copy(update=values)
    with launch_engine(settings, **options) as engine:
        yield Worker(Engines(engine), settings)


async def run(worker: Worker, payload: dict[str, Any]) -> tuple[list[Any], int | None]:
    """Return the yields of a job, and the number of tokens that it generated."""
    record = JobRecord("job-1")
    yields = [one async for one in worker.handle({"id": "job-1", "input": payload}, record)]
    return yields, record.usage.output_tokens


@pytest.mark.parametrize(
    ("name", "stream"), [(name, stream) for name, form in FORMS.items() for stream in form.streams]
)
async def test_a_choice_has_at_most_the_tokens_of_the_limit(
    name: str, stream: bool, limited_worker: Worker, limit: int
) -> None:
    form = FORMS[name]
    expected = {200: limit, None: limit, 3: 3}
    if form.needs_maximum:
        del expected[None]
    for asked, tokens in expected.items():
        yields, count = await run(limited_worker, form.make_input(asked, stream=stream))
        assert count == tokens * form.choices, (asked, yields)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raw prompt", '"finish_reason": "length"'),
        ("prompts", '"finish_reason": "length"'),
        ("chat", '"finish_reason": "length"'),
        ("completions", '"finish_reason": "length"'),
        ("responses", '"incomplete_details": {"reason": "max_output_tokens"}'),
        ("messages", '"stop_reason": "max_tokens"'),
    ],
)
async def test_a_choice_that_the_limit_cuts_ends_like_one_with_max_tokens(
    name: str, reason: str, limited_worker: Worker
) -> None:
    yields, _ = await run(limited_worker, FORMS[name].make_input(200, stream=False))
    assert reason in json.dumps(yields)


async def test_the_lines_of_a_batch_are_limited(limited_worker: Worker, limit: int) -> None:
    names = {"chat", "completions", "responses", "messages"}
    for name in names:
        form = FORMS[name]
        path, body = form.payload["openai_route"], form.payload["openai_input"]
        asked = [{form.key: 200}, {form.key: 3}, *([{}] if not form.needs_maximum else [])]
        requests = [line(f"{path}{n}", path, **body, **keys) for n, keys in enumerate(asked)]
        batch = await run_batch(limited_worker, f"job-{name}", endpoint=path, requests=requests)
        assert batch["request_counts"]["failed"] == 0
        total = sum(min(limit, next(iter(keys.values()), 200)) for keys in asked)
        assert batch["usage"]["output_tokens"] == total * form.choices


@pytest.mark.parametrize("name", ["raw prompt", "chat"])
async def test_a_minimum_above_the_limit_is_refused(name: str, limited_worker: Worker) -> None:
    payload = FORMS[name].make_input(None, stream=False)
    payload[FORMS[name].place[0]]["min_tokens"] = 8
    error = failure((await run(limited_worker, payload))[0])
    assert (error["code"], "min_tokens" in error["message"]) == (400, True)


async def test_a_script_is_limited_like_a_raw_job(limited_worker: Worker, limit: int) -> None:
    engine: Any = limited_worker._engines.main_engine
    for asked, expected in ((200, limit), (None, limit), (3, 3)):
        plan = engine.generation.plan_answer(SamplingParams(max_tokens=asked))
        assert plan.params.max_tokens == expected


async def test_the_status_of_the_worker_has_the_limit(limited_worker: Worker, limit: int) -> None:
    (status,), _ = await run(limited_worker, {"openai_route": "/chat"})
    assert status["max_new_tokens"] == limit
