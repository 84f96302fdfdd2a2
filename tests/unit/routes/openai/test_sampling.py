"""Sampling parameters of requests to vLLM's server: defaults, translations, refusals."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.engine.scripted import CHAT, ScriptedEngine, chat, settings, tokens, yields_of

from worker.errors import InvalidInput
from worker.job import OpenAIJob
from worker.routes.openai import ROUTES
from worker.routes.openai.bodies import Prepared, prepare
from worker.routes.openai.ranking import Ranking

COMPLETIONS = "/v1/completions"

Ask = Callable[..., Prepared]


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


@pytest.mark.parametrize(
    ("default", "sent", "expected"),
    [(None, None, 0.7), (0.0, None, 0.0), (0.3, None, 0.3), (0.3, 0, 0)],
)
def test_a_chat_is_as_warm_as_the_caller_or_the_model_or_else_the_worker_says(
    ask: Ask, engine: ScriptedEngine, default: float | None, sent: Any, expected: float
) -> None:
    engine.model = replace(engine.model, temperature=default)
    assert (ask(CHAT, temperature=sent).body or {})["temperature"] == expected
    # Only chats get one, and no beam does.
    for path in (COMPLETIONS, "/v1/responses", "/v1/messages", "/tokenize"):
        assert "temperature" not in (ask(path).body or {})
    assert "temperature" not in (ask(CHAT, use_beam_search=True).body or {})


# Translations:


def test_structured_output_keys_get_vllms_current_name(ask: Ask) -> None:
    for sent in ({"guided_regex": "a+"}, {"guided_options_request": {"guided_regex": "a+"}}):
        asked = ask(COMPLETIONS, prompt="", **sent)
        assert asked.body == {"prompt": "", "model": "demo", "structured_outputs": {"regex": "a+"}}


def test_keys_that_ask_for_nothing_are_left_out(ask: Ask) -> None:
    nothing = {"guided_json_object": False, "guided_decoding": {}, "best_of": 1, "n": None}
    assert ask(COMPLETIONS, **nothing) == Prepared({"model": "demo"})


def test_vllms_internal_keys_are_refused(ask: Ask) -> None:
    refused = refusal(ask, "/v1/responses", structured_outputs={"regex": "a", "_backend": "x"})
    assert refused == ("structured_outputs: unknown key '_backend'", "structured_outputs")


def test_keys_that_vllms_server_still_takes_are_passed_on(ask: Ask, engine: ScriptedEngine) -> None:
    engine.bodies = {COMPLETIONS: frozenset({"n", "model", "truncate_prompt_tokens"})}
    asked = ask(COMPLETIONS, truncate_prompt_tokens=5)
    assert asked.body == {"truncate_prompt_tokens": 5, "model": "demo"}


# One value of each kind, named as the caller wrote it: unit/job has the others.
@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"n": 257}, "n: Input should be less than or equal to 256"),
        ({"n": 3, "best_of": 2}, "best_of: at least n, which are chosen from that many"),
        ({"logits_processors": "x"}, "logits_processors is gone: vLLM has "),
        ({"return_token_log_probs": True}, "unknown key 'return_token_log_probs'"),
        ({"best_of": 2, "temperature": 0}, "best_of: "),
        ({"prompt": "", "echo": True, "logprobs": 0}, "prompt: an empty prompt"),
        ({"prompt": ["a", ""], "echo": True, "logprobs": 0}, "prompt: an empty prompt"),
        ({"best_of": 2, "stream": True}, "best_of: "),
        ({"use_beam_search": True, "stream": True}, "use_beam_search: "),
        *(
            ({"use_beam_search": True, name: value}, f"{name}: beam search does not heed it")
            for name, value in {"top_p": 0.5, "top_k": 1, "seed": 1, "stop": ["a"]}.items()
        ),
    ],
    ids=repr,
)
def test_a_value_is_refused_by_its_name(ask: Ask, sent: dict[str, Any], message: str) -> None:
    error, param = refusal(ask, COMPLETIONS, **{"prompt": "a", **sent})
    assert error.startswith(message)
    assert param in sent


def test_where_nothing_is_sampled_side_by_side_the_names_are_unknown(ask: Ask) -> None:
    for path in ("/v1/responses", "/v1/messages", "/tokenize"):
        assert refusal(ask, path, best_of=2) == ("unknown key 'best_of'", "best_of")


@pytest.mark.parametrize(
    "sent",
    [
        {"prompt": "a", "echo": True, "logprobs": 0},
        {"prompt": [[1], [2]], "echo": True, "logprobs": 0},
        {"prompt": "", "echo": True},
        {"prompt": "", "echo": False, "logprobs": 1},
    ],
    ids=repr,
)
def test_vllm_judges_other_prompts(ask: Ask, sent: dict[str, Any]) -> None:
    assert ask(COMPLETIONS, **sent).body == {**sent, "model": "demo"}


# Ranked choices:

BEAMS = {"use_beam_search": True, "length_penalty": 0.5}


@pytest.mark.parametrize(
    ("sent", "body", "ranking"),
    [
        ({"n": 2, "best_of": 2}, {"n": 2}, None),
        ({"n": 2, "best_of": 4}, {"n": 4, "logprobs": 0}, Ranking(2, 4, False, False)),
        (
            {"n": 1, "best_of": 3, "early_stopping": "never", **BEAMS},
            {"n": 3, **BEAMS},
            Ranking(1, 3, True, False),
        ),
    ],
    ids=["all are wanted", "more than are wanted", "beams"],
)
def test_more_choices_than_are_wanted_are_asked_for_and_ranked(
    ask: Ask, sent: dict[str, Any], body: dict[str, Any], ranking: Ranking | None
) -> None:
    assert ask(COMPLETIONS, **sent) == Prepared({"model": "demo", **body}, ranking)


def test_greedy_answers_are_not_worth_comparing(ask: Ask, engine: ScriptedEngine) -> None:
    assert ask(COMPLETIONS, best_of=2, temperature=0, use_beam_search=True).ranking
    engine.model = replace(engine.model, temperature=0.0)
    message, param = refusal(ask, CHAT, best_of=2)
    assert (message.endswith("gives the same text every time"), param) == (True, "best_of")


async def test_the_likeliest_choice_is_what_a_job_yields(engine: ScriptedEngine) -> None:
    engine.script = (*tokens("a"), *tokens("b", index=1))
    payload = chat(stream=False)
    payload["openai_input"] |= {"use_beam_search": True, "best_of": 2}
    (answer,) = await yields_of(engine, payload)
    assert [asked["n"] for asked in engine.asked if isinstance(asked, dict)] == [2]
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["a"]


def test_keys_that_ask_a_beam_search_for_nothing_are_accepted(
    ask: Ask, engine: ScriptedEngine
) -> None:
    sent = {"top_p": 1, "top_k": -1, "repetition_penalty": 1.0, "seed": 0, "stop": []}
    engine.bodies = {COMPLETIONS: frozenset({"n", "model", "use_beam_search", *sent})}
    assert ask(COMPLETIONS, use_beam_search=True, **sent).ranking
