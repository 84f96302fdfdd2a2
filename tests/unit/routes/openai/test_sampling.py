"""Sampling parameters of requests to vLLM's server: defaults, translations, refusals."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.engine.scripted import CHAT, ScriptedEngine, settings, tokens, yields_of

from worker.errors import InvalidInput
from worker.job import OpenAIJob
from worker.routes.openai import ROUTES
from worker.routes.openai.bodies import Prepared, prepare
from worker.routes.openai.ranking import Ranking

COMPLETIONS = "/v1/completions"

Ask = Callable[..., Prepared]


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine() as engine:
        yield engine


@pytest.fixture
def ask(engine: ScriptedEngine) -> Ask:
    """Prepare a body of these keys; unknown ones are refused."""

    def prepared(path: str, **body: Any) -> Prepared:
        job = OpenAIJob(route=path, body=body)
        (row,) = (row for row in ROUTES if row.path == path)
        return prepare(job, row, engine, "job-1", settings(STRICT_REQUESTS="1"))

    return prepared


def refusal(ask: Ask, path: str, **body: Any) -> tuple[str, str | None]:
    with pytest.raises(InvalidInput) as caught:
        ask(path, **body)
    return caught.value.message, caught.value.param


# Temperature:


@pytest.mark.parametrize(("default", "expected"), [(None, 0.7), (0.0, 0.0), (0.3, 0.3)])
@pytest.mark.parametrize("given", [{}, {"temperature": None}])
def test_a_chat_is_as_warm_as_the_model_or_else_the_worker_says(
    ask: Ask, engine: ScriptedEngine, given: dict[str, None], default: float | None, expected: float
) -> None:
    engine.model = replace(engine.model, temperature=default)
    assert (ask(CHAT, **given).body or {})["temperature"] == expected


def test_a_callers_own_temperature_stays(ask: Ask, engine: ScriptedEngine) -> None:
    engine.model = replace(engine.model, temperature=0.3)
    assert (ask(CHAT, temperature=0).body or {})["temperature"] == 0


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/responses", "/v1/messages", "/tokenize"])
def test_only_chats_get_a_temperature(ask: Ask, path: str) -> None:
    assert "temperature" not in (ask(path).body or {})


def test_a_beam_has_no_temperature(ask: Ask) -> None:
    assert "temperature" not in (ask(CHAT, use_beam_search=True).body or {})


# Translations:


@pytest.mark.parametrize(
    "given",
    [
        {"guided_regex": "a+"},
        {"guided_options_request": {"guided_regex": "a+"}},
        {"guided_decoding": {"regex": "a+"}},
        {"structured_outputs": {"regex": "a+"}},
    ],
    ids=repr,
)
def test_structured_output_keys_get_vllms_current_name(ask: Ask, given: dict[str, Any]) -> None:
    asked = ask(COMPLETIONS, prompt="", **given)
    assert asked.body == {"prompt": "", "model": "demo", "structured_outputs": {"regex": "a+"}}


@pytest.mark.parametrize(
    "given", [{"guided_json_object": False}, {"guided_decoding": {}}, {"best_of": 1}, {"n": None}]
)
def test_keys_that_ask_for_nothing_are_left_out(ask: Ask, given: dict[str, Any]) -> None:
    assert ask(COMPLETIONS, **given) == Prepared({"model": "demo"})


def test_vllms_internal_keys_are_refused(ask: Ask) -> None:
    for path in (COMPLETIONS, "/v1/responses"):
        refused = refusal(ask, path, structured_outputs={"regex": "a", "_backend": "x"})
        assert refused == ("structured_outputs: unknown key '_backend'", "structured_outputs")


@pytest.mark.parametrize("name", ["logits_processors", "guided_decoding_backend", "backend"])
def test_removed_keys_are_refused_with_what_replaces_them(ask: Ask, name: str) -> None:
    message, param = refusal(ask, COMPLETIONS, **{name: "x"})
    assert message.startswith(f"{name} is gone: vLLM has ")
    assert param == name


def test_keys_that_vllms_server_still_takes_are_passed_on(ask: Ask, engine: ScriptedEngine) -> None:
    engine.bodies = {COMPLETIONS: frozenset({"n", "model", "truncate_prompt_tokens"})}
    asked = ask(COMPLETIONS, truncate_prompt_tokens=5)
    assert asked.body == {"truncate_prompt_tokens": 5, "model": "demo"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n": "2"}, "n: Input should be a valid integer"),
        ({"n": 257}, "n: Input should be less than or equal to 256"),
        ({"n": 3, "best_of": 2}, "best_of: at least n, which are chosen from that many"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "an answer is held to one of guided_"),
        ({"guided_decoding": "a"}, "guided_decoding: an object"),
        ({"length_penalty": 2.0}, "length_penalty: it has an effect in beam search only"),
        ({"early_stopping": True, "use_beam_search": True}, "early_stopping: vLLM's beam search"),
    ],
    ids=repr,
)
def test_values_are_checked_as_on_the_raw_path_and_named_as_the_caller_wrote_them(
    ask: Ask, given: dict[str, Any], message: str
) -> None:
    error, param = refusal(ask, COMPLETIONS, prompt="", **given)
    assert error.startswith(message)
    assert param in given


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/tokenize"])
def test_where_nothing_is_sampled_side_by_side_the_names_are_unknown(ask: Ask, path: str) -> None:
    assert refusal(ask, path, best_of=2) == ("unknown key 'best_of'", "best_of")


# Ranked choices:


def test_more_choices_than_are_wanted_are_ranked(ask: Ask) -> None:
    asked = ask(COMPLETIONS, prompt="", n=2, best_of=4)
    assert asked.body == {"prompt": "", "model": "demo", "n": 4, "logprobs": 0}
    assert asked.ranking == Ranking(2, 4, ranked=False, shows_logprobs=False)


def test_choices_that_are_all_wanted_are_not(ask: Ask) -> None:
    asked = ask(COMPLETIONS, prompt="", n=2, best_of=2)
    assert asked == Prepared({"prompt": "", "model": "demo", "n": 2})


def test_beams_are_asked_for_in_vllms_words(ask: Ask) -> None:
    given = {"use_beam_search": True, "length_penalty": 0.5}
    asked = ask(COMPLETIONS, n=1, best_of=3, early_stopping="never", **given)
    assert asked.body == {"model": "demo", "n": 3, **given}
    assert asked.ranking == Ranking(1, 3, ranked=True, shows_logprobs=False)


@pytest.mark.parametrize("named", ["best_of", "use_beam_search"])
def test_ranked_choices_are_not_streamed(ask: Ask, named: str) -> None:
    given = {"best_of": 2, **({"use_beam_search": True} if named == "use_beam_search" else {})}
    message, param = refusal(ask, CHAT, stream=True, **given)
    assert (message.split(":")[0], param) == (named, named)
    assert message.endswith("leave out stream")


@pytest.mark.parametrize("stream", [False, "false", "off", 0, None])
def test_every_value_that_vllm_reads_as_no_stream_is_none(ask: Ask, stream: Any) -> None:
    assert ask(COMPLETIONS, best_of=2, stream=stream).ranking


def test_the_raw_paths_name_for_log_probabilities_is_unknown(ask: Ask) -> None:
    name = "return_token_log_probs"
    assert refusal(ask, COMPLETIONS, **{name: True}) == (f"unknown key {name!r}", name)


def test_greedy_answers_are_not_worth_comparing(ask: Ask, engine: ScriptedEngine) -> None:
    message, param = refusal(ask, COMPLETIONS, best_of=2, temperature=0)
    assert (message.endswith("gives the same text every time"), param) == (True, "best_of")
    assert ask(COMPLETIONS, best_of=2, temperature=0, use_beam_search=True).ranking
    engine.model = replace(engine.model, temperature=0.0)
    assert refusal(ask, CHAT, best_of=2)[1] == "best_of"


@pytest.mark.parametrize("prompt", ["", ["a", ""]])
def test_an_empty_prompt_has_no_likelihood_to_echo(ask: Ask, prompt: Any) -> None:
    message, param = refusal(ask, COMPLETIONS, prompt=prompt, echo=True, logprobs=0)
    assert (message.startswith("prompt: an empty prompt"), param) == (True, "prompt")


@pytest.mark.parametrize(
    "given",
    [
        {"prompt": "a", "echo": True, "logprobs": 0},
        {"prompt": [[1], [2]], "echo": True, "logprobs": 0},
        {"prompt": "", "echo": True},
        {"prompt": "", "echo": False, "logprobs": 1},
    ],
    ids=repr,
)
def test_vllm_judges_other_prompts(ask: Ask, given: dict[str, Any]) -> None:
    assert ask(COMPLETIONS, **given).body == {**given, "model": "demo"}


async def test_the_likeliest_choice_is_what_a_job_yields() -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "use_beam_search": True, "best_of": 2}
    with ScriptedEngine(*tokens("a"), *tokens("b", index=1)) as engine:
        (answer,) = await yields_of(engine, {"openai_route": CHAT, "openai_input": body})
        assert engine.asked == [
            {"messages": body["messages"], "use_beam_search": True, "n": 2, "model": "demo"}
        ]
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["a"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_p", 0.5),
        ("top_k", 1),
        ("seed", 1),
        ("presence_penalty", 1),
        ("stop", ["a"]),
        ("prompt_logprobs", 1),
    ],
)
def test_keys_that_beam_search_ignores_are_refused(ask: Ask, name: str, value: Any) -> None:
    error, param = refusal(ask, COMPLETIONS, use_beam_search=True, **{name: value})
    assert (error, param) == (f"{name}: beam search does not heed it", name)


@pytest.mark.parametrize(
    "given", [{"top_p": 1}, {"top_k": -1}, {"repetition_penalty": 1.0}, {"seed": 0}, {"stop": []}]
)
def test_keys_that_ask_a_beam_search_for_nothing_are_accepted(
    ask: Ask, engine: ScriptedEngine, given: dict[str, Any]
) -> None:
    engine.bodies = {COMPLETIONS: frozenset({"n", "model", "use_beam_search", *given})}
    assert ask(COMPLETIONS, use_beam_search=True, **given).ranking


async def test_a_method_counts_in_any_case(engine: ScriptedEngine) -> None:
    assert await yields_of(engine, {"route": "/version", "method": "get"}) == [{"version": "0"}]
