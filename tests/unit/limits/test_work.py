"""Products of choices, prompts, tokens and log probabilities: each number alone is allowed."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from support.engine.answers import job_error, run_job
from support.engine.scripted import CHAT, ScriptedEngine, settings, tokens

from worker.dialects.openai.forward import prepare_body
from worker.dialects.table import find_route
from worker.errors import InvalidInput, WorkerError
from worker.job.openai import BatchLine
from worker.limits.inputs import RAW_SHAPE, check_request
from worker.limits.work import MAX_COMPARISONS, MAX_COMPARISONS_PER_STEP

COMPLETIONS = "/v1/completions"
TURN = {"role": "user", "content": "Hi"}


def raw(**params: Any) -> dict[str, Any]:
    return {"prompt": "Hi", "sampling_params": params}


def body(route: str = CHAT, **fields: Any) -> dict[str, Any]:
    return {"openai_route": route, "openai_input": {"messages": [TURN], **fields}}


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"n": 256, "logprobs": 20, "max_tokens": 60}, 400),
        ({"n": 2, "best_of": 256, "logprobs": 20}, 400),
        # The token itself counts as well: 64 times 17.
        ({"n": 64, "logprobs": 16}, 400),
        # The response can't fit into a result, or only if nearly all choices end early.
        ({"logprobs": 20, "min_tokens": 23_000}, 413),
        ({"n": 32, "logprobs": 20, "max_tokens": 1_000}, 413),
        ({"n": 2, "logprobs": 20, "max_tokens": 12_000}, 413),
    ],
)
async def test_too_many_log_probabilities_are_refused(params: Any, code: int) -> None:
    chat_params = {**params, "logprobs": True, "top_logprobs": params["logprobs"]}
    for job in (raw(**params), body(COMPLETIONS, prompt="Hi", **params), body(**chat_params)):
        error = await job_error(job)
        assert (error["code"], error["param"]) == (code, "logprobs")
    error = await job_error(body(COMPLETIONS, prompt=["a"] * 129, n=8))
    assert error["message"] == "n: 129 prompts times 8 is more than 1,024 choices"


async def test_tokens_above_the_maximum_of_the_operator_do_not_count() -> None:
    job = raw(n=2, logprobs=20, max_tokens=12_000)
    (answer,) = await run_job(job, *tokens("a"), MAX_OUTPUT_TOKENS="7")
    assert "error" not in answer


@pytest.mark.parametrize(
    "job",
    [
        raw(n=256, max_tokens=60),
        raw(n=256, logprobs=0, max_tokens=60),
        raw(n=10, logprobs=5, max_tokens=4_096),
        raw(logprobs=20, max_tokens=100_000),
        # A stream may have more.
        {**raw(n=32, logprobs=20, max_tokens=1_000), "stream": True},
        body(COMPLETIONS, prompt=["a"] * 1_024),
        body(COMPLETIONS, prompt=["a"] * 128, n=8),
        # One prompt of many tokens, and a request without log probabilities.
        body(COMPLETIONS, prompt=[1] * 5_000, n=2),
        body(n=2, logprobs=False, max_tokens=150_000),
    ],
)
async def test_requests_whose_response_may_fit_into_a_result_are_computed(
    job: dict[str, Any],
) -> None:
    assert "error" not in (await run_job(job, *tokens("a")))[-1]


# In every form of a request:


async def item_error(params: dict[str, Any]) -> dict[str, Any]:
    """Return the error of a list's item; the list is answered without it."""
    payload = {"prompts": ["a", "b"], "sampling_params": [{"max_tokens": 4}, params]}
    ((right, wrong),) = [chunk["outputs"] for chunk in await run_job(payload, *tokens("a"))]
    assert "choices" in right
    error: dict[str, Any] = wrong["error"]
    return error


async def line_error(params: dict[str, Any]) -> dict[str, Any]:
    """Return the error of a line of a batch."""
    fields = {"prompt": "Hi", **params}
    line = BatchLine(route=COMPLETIONS, method="POST", body=fields)
    route = find_route(line)
    assert route is not None
    with ScriptedEngine() as engine, pytest.raises(WorkerError) as refused:
        prepare_body(line, route, engine, "id", settings())
    error: dict[str, Any] = refused.value.body("id")["error"]
    return error


REFUSALS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "raw": lambda params: job_error(raw(**params)),
    "raw stream": lambda params: job_error({**raw(**params), "stream": True}),
    "conversation": lambda params: job_error({"messages": [TURN], "sampling_params": params}),
    "list": lambda params: job_error({"prompts": ["a", "b"], "sampling_params": params}),
    "item": item_error,
    "completion": lambda params: job_error(body(COMPLETIONS, prompt="Hi", **params)),
    "chat": lambda params: job_error(body(**params)),
    "chat stream": lambda params: job_error(body(stream=True, **params)),
    "line": line_error,
}
DETECTION = {"max_pattern_size": 256, "min_pattern_size": 128, "min_count": 3}


async def test_an_item_of_a_list_with_a_parameter_beyond_its_bound_fails_alone() -> None:
    assert (await item_error({"logit_bias": {"5": 101}}))["code"] == 400


TOO_MANY_COMPARISONS = (
    "6 choices times up to 49,536 comparisons for a token, at most 262,144: lower "
    "max_pattern_size or min_count, or ask for fewer choices"
)


@pytest.mark.parametrize("form", REFUSALS)
async def test_a_product_beyond_its_limit_is_refused_in_every_form(form: str) -> None:
    error = await REFUSALS[form]({"n": 6, "repetition_detection": DETECTION})
    holder = "" if form in {"completion", "chat", "chat stream", "line"} else "sampling_params."
    assert (error["code"], error["param"]) == (400, "repetition_detection")
    assert error["message"] == f"{holder}repetition_detection: {TOO_MANY_COMPARISONS}"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"best_of": 6, "repetition_detection": DETECTION}, TOO_MANY_COMPARISONS),
        (
            {"repetition_detection": {**DETECTION, "min_count": 4}},
            "up to 74,304 comparisons for a token, at most 65,536: lower max_pattern_size or "
            "min_count",
        ),
        (
            {"n": 2, "logprobs": 1, "logprob_token_ids": [*range(128)]},
            "258 log probabilities for a token of each choice, at most 256",
        ),
        # vLLM's server reads 20.0 as 20.
        (
            {"n": 112, "logprobs": 20.0},
            "2,352 log probabilities for a token of each choice, at most 1,024",
        ),
        (
            {"n": 112, "prompt_logprobs": 20},
            "2,352 log probabilities for a token of the prompt of each choice, at most 32: ask "
            "for them with fewer choices",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_refusal_has_the_product_and_its_limit(params: dict[str, Any], message: str) -> None:
    param = [*params][-1].replace("logprob_token_ids", "logprobs")
    with pytest.raises(InvalidInput) as refused:
        check_request({"prompt": "Hi", **params}, RAW_SHAPE, settings(), "sampling_params")
    assert (refused.value.message, refused.value.param) == (
        f"sampling_params.{param}: {message}",
        param,
    )


async def test_alternatives_count_wherever_a_chat_has_their_number() -> None:
    for logprobs in (True, 1, "yes"):
        error = await job_error(body(n=112, logprobs=logprobs, top_logprobs=20))
        assert (error["code"], error["param"]) == (400, "logprobs")


@pytest.mark.parametrize(
    "params",
    [
        # Sizes of patterns that callers of vLLM use.
        {"n": 256, "repetition_detection": {"max_pattern_size": 20, "min_count": 3}},
        {"n": 64, "repetition_detection": {"max_pattern_size": 50, "min_count": 4}},
        {"n": 16, "repetition_detection": {"max_pattern_size": 64, "min_count": 5}},
        {"n": 8, "repetition_detection": {"max_pattern_size": 128, "min_count": 4}},
        {"repetition_detection": {"max_pattern_size": 128, "min_count": 8}},
        {"repetition_detection": {"max_pattern_size": 256, "min_count": 2}},
        # vLLM checks the rest, and a maximum of 0 turns the detection off.
        {"n": 256, "repetition_detection": {"max_pattern_size": 0, "min_count": 256}},
        {"n": 256, "repetition_detection": {"min_pattern_size": 256, "min_count": 256}},
        {"n": 256, "repetition_detection": None},
        {"n": 256, "repetition_detection": [256]},
        {"n": 128, "logprobs": 1, "logprob_token_ids": [1, 2, 3]},
        {"n": 2, "logprobs": 0, "logprob_token_ids": [*range(127)]},
        {"logprobs": 0, "logprob_token_ids": [*range(128)]},
        {"n": 48, "logprobs": 20},
        {"n": 16, "prompt_logprobs": 1},
        {"prompt_logprobs": 1_000},
        {"n": 256, "logprobs": 1, "echo": False},
    ],
    ids=lambda params: str(params)[:60],
)
def test_products_within_their_limits_are_accepted(params: dict[str, Any]) -> None:
    check_request({"prompt": "Hi", **params}, RAW_SHAPE, settings())


def test_comparisons_are_limited_as_the_sum_over_all_sizes_times_choices() -> None:
    for largest, smallest, count, choices in itertools.product(
        (1, 20, 64, 128, 200, 256), (0, 1, 16, 120, 256), (2, 3, 8, 64, 256), (1, 2, 15, 112, 256)
    ):
        detection = dict(zip(DETECTION, (largest, smallest, count), strict=True))
        comparisons = sum((count - 1) * size for size in range(max(1, smallest), largest + 1))
        is_allowed = (
            max(comparisons / MAX_COMPARISONS, comparisons * choices / MAX_COMPARISONS_PER_STEP)
            <= 1
        )
        # vLLM's server also reads numbers from strings.
        for values in (detection, {name: str(number) for name, number in detection.items()}):
            refused = None if is_allowed else "repetition_detection"
            request = {"n": choices, "repetition_detection": values}
            assert refused_parameter(request) == refused, (choices, detection)


def refused_parameter(request: dict[str, Any]) -> str | None:
    try:
        check_request(request, RAW_SHAPE, settings())
    except InvalidInput as error:
        return error.param
    return None


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"prompt": [[5] * 2_000] * 60, "logprobs": 4, "echo": True}, 413),
        ({"prompt": ["abcd" * 2_000] * 60, "prompt_logprobs": 4}, 413),
        ({"prompt": [5] * 20_000, "prompt_logprobs": 15, "n": 2}, 413),
        ({"prompt": [[5] * 2_000] * 60, "logprobs": 4, "echo": True, "stream": True}, None),
        ({"prompt": [[5] * 2_000] * 60, "logprobs": 4}, None),
        # A usual list of an evaluation, and one prompt, which the context limits.
        ({"prompt": [[5] * 2_000] * 64, "logprobs": 1, "echo": True, "max_tokens": 1}, None),
        ({"prompt": [5] * 100_000, "prompt_logprobs": 20}, None),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_the_log_probabilities_of_many_prompts_fit_one_answer(
    fields: dict[str, Any], code: int | None
) -> None:
    job = body(COMPLETIONS, **fields)
    if code is None:
        assert "error" not in (await run_job(job, *tokens("a")))[-1]
        return
    assert (await job_error(job))["code"] == code
    assert (await line_error(fields))["code"] == code
