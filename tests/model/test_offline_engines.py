"""`LLM` with adapters, without a tokenizer, for embeddings, and at its end (scripts/)."""

import json
from pathlib import Path
from typing import Any

import pytest
from demo_model import ANSWERS, PASSAGE
from support.processes.offline_scripts import Ended

ENDING = PASSAGE[1]
NO_TOKENIZER = "send the prompt as a list of token ids"


def error_of(chunks: list[Any]) -> dict[str, Any]:
    (chunk,) = chunks
    error: dict[str, Any] = json.loads(chunk["error"])["error"]
    return error


# Adapters


def test_an_adapter_changes_the_answers_of_just_its_prompts(generate: Ended) -> None:
    adapters = generate["adapters"]
    (plain,) = adapters["none"]
    whisper, again = adapters["all"]
    _, _, _, shout = adapters["one_for_each"]
    assert ENDING.startswith(plain)
    assert whisper == again
    assert len({plain, whisper, shout}) == 3
    assert adapters["one_for_each"] == [plain, whisper, plain, shout]


def test_a_conversation_is_answered_by_its_adapter(generate: Ended) -> None:
    plain, whisper = generate["adapters"]["chat"]
    assert ANSWERS["Hello!"].startswith(plain)
    assert whisper != plain


@pytest.mark.parametrize(
    ("adapter", "message"), [("missing", "No adapter found"), ("broken", "deserializing header")]
)
def test_an_adapter_that_cannot_be_loaded_raises_the_reason(
    generate: Ended, adapter: str, message: str
) -> None:
    assert message in generate["adapters"][adapter]["message"]


@pytest.mark.parametrize("adapter", ["missing", "broken"])
def test_an_adapter_that_cannot_be_loaded_raises_an_error_of_the_workers(
    generate: Ended, adapter: str
) -> None:
    assert generate["adapters"][adapter]["of_worker"]


def test_after_an_adapter_that_could_not_be_loaded_the_engine_answers_on(generate: Ended) -> None:
    adapters = generate["adapters"]
    assert adapters["afterwards"] == [*adapters["none"], adapters["all"][0]]


def test_a_job_chooses_an_adapter_or_the_model_by_name(generate: Ended) -> None:
    adapters = generate["adapters"]
    by_model, by_lora, base, unknown, unnamed = adapters["raw"]
    texts = ["".join(chunk["choices"][0]["tokens"]) for chunk in (by_model, by_lora, base, unnamed)]
    assert texts == [adapters["one_for_each"][3]] * 2 + adapters["none"] * 2
    error = error_of([unknown])
    assert (error["code"], error["param"]) == (404, "model")
    assert "serves demo, shout" in error["message"]


# Without a tokenizer


def test_without_a_tokenizer_ids_are_answered_with_ids(ids: Ended) -> None:
    first, second = ids["ids"]
    assert first == second
    assert len(first) == 12
    assert ids["texts"] == ["", ""]


@pytest.mark.parametrize("call", ["text", "chat"])
def test_without_a_tokenizer_text_is_refused_with_the_reason(ids: Ended, call: str) -> None:
    assert (ids[call]["of_worker"], ids[call]["status"]) == (True, 400)
    assert NO_TOKENIZER in ids[call]["message"]


def test_without_a_tokenizer_the_text_of_a_dict_is_refused(ids: Ended) -> None:
    refused = ids["text_in_dict"]
    assert (refused["of_worker"], refused["status"]) == (True, 400)
    assert NO_TOKENIZER in refused["message"]


@pytest.mark.parametrize("parameter", ["stop", "bad_words"])
def test_without_a_tokenizer_stop_and_bad_words_are_refused(ids: Ended, parameter: str) -> None:
    assert ids[parameter]["of_worker"]


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
    error = error_of(ids["jobs"][job])
    assert error["code"] == 400
    assert message in error["message"]


# Embeddings


def test_vectors_come_in_the_order_of_the_prompts(embed: Ended, demo_model: Path) -> None:
    first, other, again = embed["together"]
    (alone,) = embed["alone"]
    width = json.loads((demo_model / "config.json").read_text())["hidden_size"]
    assert [len(vector) for vector in (first, other, again)] == [width] * 3
    assert first == pytest.approx(again, abs=1e-4)
    assert other == pytest.approx(alone, abs=1e-4)
    assert first != pytest.approx(other, abs=1e-2)


@pytest.mark.parametrize("call", ["generate", "too_long"])
def test_a_model_that_embeds_refuses_what_it_cannot_do_and_embeds_on(
    embed: Ended, call: str
) -> None:
    assert (embed[call]["of_worker"], embed[call]["status"]) == (True, 400)
    assert embed["afterwards"][0] == pytest.approx(embed["alone"][0], abs=1e-4)


# The end


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
