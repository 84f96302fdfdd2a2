"""Completions, models and refusals with scripts for Scale LLM Engine, each way to a worker."""

import json
import re
from typing import Any

import pytest
from support.processes.llm_engine import CLASSES, ENDPOINT, PROXY, SERVE, Host

STORY = " that lived beside a wide river of tokens. Every morning it filled a cup for each guest."
ADAPTER = "fairy.tales-2"
OTHER = "sea.tales"
BASES = {"demo", "tiny/demo"}
NAMES = ["plain", "log probabilities", "other name", "stop", "with the stop"]
NAMES += ["json", "regex", "choice", "grammar"]
WAYS = ("sync", "stream", "async", "async stream")

every_mode = pytest.mark.parametrize("mode", ["sync", "async"])


@pytest.fixture(scope="module")
def completions(scripts_host: Host) -> dict[str, Any]:
    """Return the answers that the script got."""
    found = scripts_host.printed("completions")
    assert [*found["sync"]] == [*found["async"]] == NAMES
    return found


def texts_of(answers: dict[str, Any]) -> dict[str, str]:
    return {name: answer["whole"]["output"]["text"] for name, answer in answers.items()}


@every_mode
@pytest.mark.parametrize("name", NAMES)
def test_a_stream_is_the_whole_answer_in_counted_parts(
    name: str, mode: str, completions: dict[str, Any]
) -> None:
    asked = completions[mode][name]
    whole, events = asked["whole"]["output"], [event["output"] for event in asked["events"]]
    assert "".join(event["text"] for event in events) == whole["text"]
    counts = [event["num_completion_tokens"] for event in events]
    assert counts == sorted(set(counts))
    assert (counts[0], counts[-1]) == (1, whole["num_completion_tokens"])
    assert [event["finished"] for event in events] == [False] * (len(events) - 1) + [True]
    prompts = [event["num_prompt_tokens"] for event in events]
    assert prompts == [None] * (len(events) - 1) + [whole["num_prompt_tokens"]]
    ids = {event["request_id"] for event in asked["events"]}
    assert len(ids | {asked["whole"]["request_id"]}) == 2
    assert all(event["error"] is None for event in asked["events"])


@every_mode
def test_an_answer_is_the_models(mode: str, completions: dict[str, Any]) -> None:
    answer = completions[mode]["plain"]
    output = answer["whole"]["output"]
    assert output["text"]
    assert STORY.startswith(output["text"])
    assert (output["num_prompt_tokens"], output["num_completion_tokens"]) == (15, 16)
    assert output["tokens"] is None
    counts = [event["output"]["num_completion_tokens"] for event in answer["events"]]
    assert counts == [*range(1, 17)]
    assert all(event["output"]["token"] is None for event in answer["events"])


@every_mode
def test_log_probabilities_come_with_each_token(mode: str, completions: dict[str, Any]) -> None:
    asked = completions[mode]["log probabilities"]
    output = asked["whole"]["output"]
    assert "".join(token["token"] for token in output["tokens"]) == output["text"]
    assert all(token["log_prob"] <= 0 for token in output["tokens"])
    streamed = [event["output"]["token"] for event in asked["events"]]
    assert [token["token"] for token in streamed] == [token["token"] for token in output["tokens"]]
    for token, alone in zip(streamed, output["tokens"], strict=True):
        assert token["log_prob"] == pytest.approx(alone["log_prob"], abs=1e-2)


@every_mode
def test_keys_have_their_effect(mode: str, completions: dict[str, Any]) -> None:
    texts = texts_of(completions[mode])
    assert texts["other name"] == texts["plain"]
    assert texts["stop"] == " that lived beside a"
    assert texts["with the stop"] == " that lived beside a wide"
    learnt = {"name": "demo", "streams": None, "chunks": [1, 3, 9, 27]}
    assert json.loads(texts["json"]) == learnt
    assert re.fullmatch("[0-9]{3}-[0-9]{2}", texts["regex"])
    assert texts["choice"] in {"Paris", "London"}
    assert texts["grammar"] in {"yes no end", "yes perhaps end"}


def test_without_parameters_there_are_at_most_twenty_tokens(completions: dict[str, Any]) -> None:
    assert 1 <= completions["defaults"]["output"]["num_completion_tokens"] <= 20


def test_calls_at_once_are_each_answered_right(completions: dict[str, Any]) -> None:
    texts = texts_of(completions["sync"])
    assert len(completions["together"]) == 2 * 10 * len(NAMES)
    assert [name for name, text in completions["together"] if text != texts[name]] == []


# Models:


@pytest.fixture(scope="module")
def adapter_files(scripts_host: Host) -> dict[str, str]:
    """Put two adapters on the volume; return the files of the one that is deleted."""
    scripts_host.adapter(OTHER)
    return {path.name: path.read_bytes().hex() for path in scripts_host.adapter(ADAPTER).iterdir()}


@pytest.fixture(scope="module")
def listing(scripts_host: Host, adapter_files: dict[str, str]) -> dict[str, Any]:
    """Return the answers that the script got, under each base that an address may have."""
    assert len(adapter_files) == 2
    ends = {SERVE: ["/", "/v1", "/v1/"], CLASSES: []}.get(
        scripts_host.way, ["/", "/v2/local/", "/v2/local/openai"]
    )
    return scripts_host.printed("models", ADAPTER, *(f"{scripts_host.url}{end}" for end in ends))


def test_models_are_listed_and_described_under_all_their_names(listing: dict[str, Any]) -> None:
    assert listing["get"] == listing["listed"]
    listed = {model["name"]: model for model in listing["listed"]}
    for name in (*BASES, "listed", ADAPTER, OTHER):
        model = listed[name]
        assert model["model_name"] == (name if name in BASES else "demo")
        assert (model["source"], model["status"]) == ("hugging_face", "READY")
        assert (model["inference_framework"], model["num_shards"]) == ("vllm", 1)
        assert model["spec"] is None


def test_each_model_answers_under_its_name(listing: dict[str, Any]) -> None:
    texts = listing["texts"]
    assert texts["demo"] == texts["tiny/demo"]
    assert STORY.startswith(texts["demo"])
    assert texts["demo"] not in {texts[ADAPTER], texts["listed"]}


def test_a_base_has_or_lacks_what_belongs_to_a_path(listing: dict[str, Any]) -> None:
    for names in listing["bases"]:
        assert {*BASES, "listed", OTHER} <= set(names)


def test_an_adapters_files_are_downloaded_by_links_and_held_by_no_job(
    listing: dict[str, Any], adapter_files: dict[str, str], scripts_host: Host
) -> None:
    if scripts_host.way == SERVE:
        assert listing["files"] == adapter_files
    else:
        assert "volume" in listing["files"]["error"]
    assert listing["format"]["error"] == "BadRequestError"


def test_a_deleted_adapter_is_gone_and_nothing_else(
    listing: dict[str, Any], scripts_host: Host
) -> None:
    found = listing["deleted"]
    assert found["deleted"] == {"deleted": True}
    for call in ("again", "get", "completion", "download"):
        assert found[call]["error"] == "NotFoundError", call
    assert ADAPTER not in found["listed"]
    assert {*BASES, "listed", OTHER} <= set(found["listed"])
    assert not (scripts_host.volume / "adapters" / ADAPTER).exists()
    assert (scripts_host.volume / "adapters" / OTHER).is_dir()
    for name in ("base", "base by its other name", "of the settings"):
        assert found[name]["error"] == "BadRequestError", name


# Refusals: its client's own errors, by their classes.

BAD, NONE = "BadRequestError", "NotFoundError"
NOT_THERE = ["file", "content", "deleted file", "batch", "model", "deleted model", "download"]
NOT_THERE += ["fine-tune", "cancelled fine-tune", "events"]
TABLE: dict[str, dict[str, tuple[str, str]]] = {
    "unknown model": dict.fromkeys(WAYS, (NONE, "org/none")),
    "wrong regex": dict.fromkeys(WAYS, (BAD, "regex")),
    "other values": {
        "two guided keys": (BAD, "guided"),
        "too long": (BAD, "2,048"),
        "too large": (BAD, "20,000,000"),
    },
    "not there": dict.fromkeys(NOT_THERE, (NONE, "")),
    # What the classes have no calls for, or make themselves.
    "past the client": {
        "unknown key": (BAD, "max_tokens"),
        "form": (BAD, ""),
        "method": (BAD, "/v1/files takes POST and GET"),
        "route": (NONE, ""),
        "create": (BAD, "platform"),
        "update": (BAD, "platform"),
    },
    # Where callers have a key.
    "wrong key": dict.fromkeys([*WAYS, "models", "files"], ("UnauthorizedError", "")),
}
NOT_EVERYWHERE = {"past the client": {SERVE, ENDPOINT, PROXY}, "wrong key": {SERVE, PROXY}}


@pytest.mark.parametrize("part", TABLE)
def test_a_refusal_is_the_error_that_the_client_knows_with_the_reason(
    part: str, scripts_host: Host
) -> None:
    if scripts_host.way not in NOT_EVERYWHERE.get(part, {scripts_host.way}):
        pytest.skip("there are no such calls")
    refusals = scripts_host.printed("refused", part)[part]
    for name, (error, says) in TABLE[part].items():
        refusal = refusals[name]
        assert (refusal["error"], says in refusal["message"]) == (error, True), (name, refusal)
        # The message alone, without what is around.
        assert error != BAD or not refusal["message"].startswith("{"), (name, refusal)


def test_a_value_out_of_range_is_refused_by_the_client_itself_or_by_the_worker(
    scripts_host: Host,
) -> None:
    refusal = scripts_host.printed("refused", "out of range")["out of range"]["temperature"]
    error = BAD if scripts_host.way == CLASSES else "ValidationError"
    assert (refusal["error"], "temperature" in refusal["message"]) == (error, True)
