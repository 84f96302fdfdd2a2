"""`LLM`: what it takes, what it answers and what it refuses (scripts/generate.py, ids, embed)."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from demo_model import ANSWERS, MEMORY, PASSAGE
from support.engine.requests import text_of
from support.engine.scripted import failure
from support.processes.offline_scripts import Ended

ENDING = PASSAGE[1]
ANSWER = next(iter(ANSWERS.values()))
NO_TOKENIZER = "send the prompt as a list of token ids"

case = pytest.param


def at(ended: Ended, place: str) -> Any:
    return functools.reduce(lambda found, key: found[key], place.split("."), ended.results)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        case("arguments.reads_ahead", False, id="what is refused reads no weights ahead"),
        case("prompts.alone", [[ENDING]] * 4, id="a prompt is a text, ids or one of vLLM's dicts"),
        case("prompts.together", [ENDING] * 4, id="prompts of all kinds may stand in one list"),
        case("prompts.legacy", [ENDING] * 2, id="ids as older code passes them"),
        case("prompts.legacy_flat", [ENDING], id="one prompt's ids as older code passes them"),
        case("prompts.many", [*ANSWERS.values()] * 2, id="answers are in the prompts' order"),
        case("prompts.none", [], id="no prompts have no answers"),
        case("prompts.type", "vllm.outputs.RequestOutput", id="outputs are vLLM's own"),
        case("params.none", [16], id="without parameters an answer has up to 16 tokens"),
        case("params.dict", [[4]], id="parameters may be a dict"),
        case("params.vllms", [[5]], id="parameters may be vLLM's"),
        case("params.choices", [[2, 2, 2]], id="a prompt may have several choices"),
        case("params.one_for_each", [[1], [5], [16]], id="each prompt may have its parameters"),
        case("params.tuple", [[1], [5]], id="they may come in a tuple"),
        case("params.changed", [[3], [6]], id="they may be changed between calls"),
        case("params.untouched", True, id="vLLM's parameters stay as they were"),
        case("guided.untouched", True, id="so they do with a constraint"),
        case("refused.unfinished", 0, id="a refusal ends the other requests"),
        case("refused.afterwards", [ENDING], id="after a refusal the engine answers on"),
        case("chat.one", [ANSWER], id="a conversation is answered"),
        case("chat.several", [MEMORY.messages[3]["content"], ANSWER], id="so is a list of them"),
        case("chat.template", [ENDING], id="a template of the caller's replaces the model's"),
        case("chat.continued", [ANSWER[ANSWER.index(" Face") :]], id="a turn may be continued"),
        case("bar.off", "", id="no bar is shown where none is wanted"),
        case("adapters.prompt_adapters", [[ENDING]] * 2, id="a prompt adapter has no effect"),
    ],
)
def test_the_answer_of_a_call(generate: Ended, place: str, expected: Any) -> None:
    assert at(generate, place) == expected


@pytest.mark.parametrize(
    ("script", "place", "kind", "words"),
    [
        (
            "generate",
            "arguments.unknown",
            "TypeError",
            "'max_model_length': did you mean 'max_model_len'?",
        ),
        ("generate", "arguments.wrong", "SettingsError", "DTYPE = 'int3'"),
        ("generate", "arguments.wrong", "SettingsError", "MAX_MODEL_LEN = 'many'"),
        ("generate", "arguments.wrong_everywhere", "SettingsError", "MAX_CONCURRENCY = '0'"),
        ("generate", "arguments.wrong_everywhere", "SettingsError", "MAX_MODEL_LEN = 'many'"),
        ("generate", "arguments.no_such_model", "SettingsError", "there is no such directory"),
        ("generate", "arguments.too_much", "StartFailed", "max_model_len (10000000)"),
        ("generate", "params.too_few", "ValueError", "sampling_params: 1 of them for 2 prompts"),
        ("generate", "params.unknown", 400, "did you mean 'max_tokens'?"),
        ("generate", "guided.two", 400, "an answer is held to one of "),
        ("generate", "refused.too_long", 400, "2000 input tokens"),
        ("generate", "refused.unknown_id", 400, "out of vocabulary"),
        ("generate", "refused.embedding", 400, "does not support pooling"),
        ("generate", "chat.too_few", "ValueError", "sampling_params: 1 of them for 2 prompts"),
        ("generate", "chat.wrong", 400, "messages.0.role"),
        ("generate", "adapters.too_few", "ValueError", "lora_request: 1 of them for 2 prompts"),
        ("generate", "adapters.missing", 404, "No adapter found"),
        ("generate", "adapters.broken", "RefusedByEngine", "deserializing header"),
        ("ids", "text", 400, NO_TOKENIZER),
        ("ids", "text_in_dict", 400, NO_TOKENIZER),
        ("ids", "chat", 400, NO_TOKENIZER),
        ("ids", "stop", 400, "tokenizer"),
        ("ids", "bad_words", 400, "tokenizer"),
        ("embed", "generate", 400, "does not generate text"),
        ("embed", "too_long", 400, "maximum context length is 512 tokens"),
        ("embed", "closed", "RuntimeError", "this LLM is closed"),
    ],
)  # fmt: skip - one line a case
def test_a_call_is_refused_with_the_reason(
    script: str, place: str, kind: str | int, words: str, request: pytest.FixtureRequest
) -> None:
    refused = at(request.getfixturevalue(script), place)
    assert refused["kind"] == kind
    assert words in refused["message"]


@pytest.mark.parametrize("argument", ["swap_space", "prompt_adapter_request"])
def test_an_argument_without_effect_warns_once(generate: Ended, argument: str) -> None:
    assert generate.stderr.count(f"{argument} has no effect") == 1


def test_structured_outputs_may_be_a_dict_or_an_object(generate: Ended) -> None:
    guided = generate["guided"]
    assert guided["dict"] in {"maybe", "never"}
    assert guided["object"].isdecimal()
    assert len(guided["object"]) == 4
    assert set(guided["vllms"]) <= set("abc")
    assert len(guided["vllms"]) == 7


def test_the_best_of_several_samples_come_best_first(generate: Ended) -> None:
    every, best = (generate["ranked"][name] for name in ("all", "best"))
    ordered = sorted(every, key=lambda choice: choice["logprob"], reverse=True)
    assert len({choice["text"] for choice in every}) == 4
    assert best == ordered[:2]


def test_a_beam_search_finds_what_is_likelier_than_the_greedy_answer(generate: Ended) -> None:
    ranked = generate["ranked"]
    (greedy,), (narrow,), (first, second) = (ranked[name] for name in ("greedy", "narrow", "beam"))
    assert narrow["text"] == greedy["text"]
    assert first["text"] != second["text"]
    assert greedy["logprob"] - 1e-3 <= first["logprob"] >= second["logprob"]


def test_a_turn_of_the_assistant_begins_unless_the_caller_says_no(generate: Ended) -> None:
    begins, does_not = generate["chat"]["begins"], generate["chat"]["does_not_begin"]
    assert begins[: len(does_not)] == does_not
    assert len(begins) > len(does_not)


def test_a_bar_is_shown_where_it_is_wanted(generate: Ended) -> None:
    assert "3/3" in generate["bar"]["on"]
    assert "1/1" in generate["bar"]["on"]


# Adapters:


def test_an_adapter_changes_the_answers_of_just_its_prompts(generate: Ended) -> None:
    adapters = generate["adapters"]
    (plain,) = adapters["none"]
    whisper, again = adapters["all"]
    _, _, _, shout = adapters["one_for_each"]
    assert ENDING.startswith(plain)
    assert whisper == again
    assert len({plain, whisper, shout}) == 3
    assert adapters["one_for_each"] == [plain, whisper, plain, shout]
    # Beside one that could not be loaded.
    assert adapters["afterwards"] == [plain, whisper]


def test_a_conversation_is_answered_by_its_adapter(generate: Ended) -> None:
    plain, whisper = generate["adapters"]["chat"]
    assert ANSWERS["Hello!"].startswith(plain)
    assert whisper != plain


def test_a_job_chooses_an_adapter_or_the_model_by_name(generate: Ended) -> None:
    adapters = generate["adapters"]
    by_model, by_lora, base, unknown, unnamed = adapters["raw"]
    texts = [text_of([chunk]) for chunk in (by_model, by_lora, base, unnamed)]
    assert texts == [adapters["one_for_each"][3]] * 2 + adapters["none"] * 2
    error = failure([unknown])
    assert (error["code"], error["param"]) == (404, "model")
    assert "serves demo, shout" in error["message"]


# Without a tokenizer:


def test_without_a_tokenizer_ids_are_answered_with_ids(ids: Ended) -> None:
    first, second = ids["ids"]
    assert first == second
    assert len(first) == 12
    assert ids["texts"] == ["", ""]


def test_without_a_tokenizer_a_job_of_ids_is_answered_with_ids(ids: Ended) -> None:
    (whole,), streamed = ids["jobs"]["ids"], ids["jobs"]["streamed"]
    assert whole["choices"][0]["token_ids"] == ids["ids"][0]
    assert len(streamed) > 1
    streamed_ids = [id_ for chunk in streamed for id_ in chunk["choices"][0]["token_ids"]]
    assert streamed_ids == ids["ids"][0]
    assert whole["usage"] == streamed[-1]["usage"] == {"input": 4, "output": 12}


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ("text", NO_TOKENIZER),
        ("messages", NO_TOKENIZER),
        ("stop", "this worker has no tokenizer"),
        ("bad_words", "this worker has no tokenizer"),
        ("beam", "use_beam_search: this worker has no tokenizer"),
        ("unknown_id", "out of vocabulary"),
    ],
)
def test_without_a_tokenizer_a_job_with_text_is_refused(ids: Ended, job: str, message: str) -> None:
    error = failure(ids["jobs"][job])
    assert error["code"] == 400
    assert message in error["message"]


# Embeddings:


def test_vectors_come_in_the_order_of_the_prompts(embed: Ended, demo_model: Path) -> None:
    first, other, again = embed["together"]
    (alone,) = embed["alone"]
    width = json.loads((demo_model / "config.json").read_text())["hidden_size"]
    assert [len(vector) for vector in (first, other, again)] == [width] * 3
    assert first == pytest.approx(again, abs=1e-4)
    assert other == pytest.approx(alone, abs=1e-4)
    assert first != pytest.approx(other, abs=1e-2)
    # After what it has refused.
    assert embed["afterwards"][0] == pytest.approx(alone, abs=1e-4)


# The end:


def test_leaving_the_block_ends_the_engine_though_the_script_goes_on(embed: Ended) -> None:
    assert embed["processes"] >= 1
    assert embed["left"] == 0


@pytest.mark.parametrize("script", ["generate", "ids", "embed"])
def test_a_script_ends_by_itself_and_leaves_no_process_behind(
    request: pytest.FixtureRequest, script: str
) -> None:
    ended: Ended = request.getfixturevalue(script)
    assert ended.status == 0, ended.stderr
    assert ended.left == []
