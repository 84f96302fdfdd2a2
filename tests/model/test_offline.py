"""`LLM`: what it takes, what it answers and what it refuses (scripts/generate.py)."""

from typing import Any

import pytest
from demo_model import ANSWERS, MEMORY, PASSAGE
from support.processes.offline_scripts import Ended

ENDING = PASSAGE[1]
QUESTION, ANSWER = next(iter(ANSWERS.items()))


# The arguments


def test_an_unknown_argument_is_refused_with_the_nearest_name(generate: Ended) -> None:
    refused = generate["arguments"]["unknown"]
    assert refused["type"] == "TypeError"
    assert "'max_model_length': did you mean 'max_model_len'?" in refused["message"]


def test_what_is_refused_reads_no_weights_ahead(generate: Ended) -> None:
    assert not generate["arguments"]["reads_ahead"]


def test_wrong_values_are_refused_all_at_once(generate: Ended) -> None:
    refused = generate["arguments"]["wrong"]
    assert refused["type"] == "SettingsError"
    assert "DTYPE = 'int3'" in refused["message"]
    assert "MAX_MODEL_LEN = 'many'" in refused["message"]


def test_a_missing_model_is_a_wrong_value(generate: Ended) -> None:
    refused = generate["arguments"]["no_such_model"]
    assert refused["type"] == "SettingsError"
    assert "there is no such directory" in refused["message"]


def test_an_argument_that_vllm_cannot_start_with_is_reported_and_another_start_succeeds(
    generate: Ended,
) -> None:
    refused = generate["arguments"]["too_much"]
    assert refused["type"] == "StartFailed"
    assert "max_model_len (10000000)" in refused["message"]


def test_wrong_settings_are_refused_together_with_wrong_options(generate: Ended) -> None:
    refused = generate["arguments"]["wrong_everywhere"]
    assert "MAX_CONCURRENCY = '0'" in refused["message"]
    assert "MAX_MODEL_LEN = 'many'" in refused["message"]


def test_an_argument_without_effect_warns_once(generate: Ended) -> None:
    assert generate.stderr.count("swap_space has no effect") == 1


def test_a_prompt_adapter_warns_once(generate: Ended) -> None:
    assert generate.stderr.count("prompt_adapter_request has no effect") == 1


def test_a_prompt_adapter_has_no_effect(generate: Ended) -> None:
    assert generate["adapters"]["prompt_adapters"] == [[ENDING]] * 2


# Prompts


def test_a_prompt_is_a_text_ids_or_one_of_vllms_dicts(generate: Ended) -> None:
    assert generate["prompts"]["alone"] == [[ENDING]] * 4
    assert generate["prompts"]["together"] == [ENDING] * 4


def test_prompts_can_come_as_ids_the_way_older_code_passes_them(generate: Ended) -> None:
    assert generate["prompts"]["legacy"] == [ENDING] * 2
    assert generate["prompts"]["legacy_flat"] == [ENDING]


def test_answers_of_different_lengths_come_in_the_order_of_the_prompts(generate: Ended) -> None:
    assert generate["prompts"]["many"] == [*ANSWERS.values()] * 2


def test_no_prompts_have_no_answers(generate: Ended) -> None:
    assert generate["prompts"]["none"] == []


def test_outputs_are_vllms_own(generate: Ended) -> None:
    assert generate["prompts"]["type"] == "vllm.outputs.RequestOutput"


# Sampling parameters


@pytest.mark.parametrize(
    ("kind", "lengths"),
    [
        # The longest of several.
        ("none", [16]),
        ("dict", [[4]]),
        ("vllms", [[5]]),
        ("choices", [[2, 2, 2]]),
        ("one_for_each", [[1], [5], [16]]),
        ("tuple", [[1], [5]]),
        ("changed", [[3], [6]]),
    ],
)
def test_sampling_parameters_are_one_for_all_or_one_for_each_prompt(
    generate: Ended, kind: str, lengths: list[Any]
) -> None:
    assert generate["params"][kind] == lengths


def test_vllms_own_parameters_stay_as_they_were(generate: Ended) -> None:
    assert generate["params"]["untouched"]
    assert generate["guided"]["untouched"]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("params", "sampling_params: 1 of them for 2 prompts"),
        ("chat", "sampling_params: 1 of them for 2 prompts"),
        ("adapters", "lora_request: 1 of them for 2 prompts"),
    ],
)
def test_lists_of_different_lengths_are_refused(generate: Ended, part: str, message: str) -> None:
    refused = generate[part]["too_few"]
    assert (refused["type"], refused["message"]) == ("ValueError", message)


def test_an_unknown_parameter_is_refused_with_the_nearest_name(generate: Ended) -> None:
    refused = generate["params"]["unknown"]
    assert (refused["of_worker"], refused["status"]) == (True, 400)
    assert "did you mean 'max_tokens'?" in refused["message"]


def test_structured_outputs_may_be_a_dict_or_an_object(generate: Ended) -> None:
    guided = generate["guided"]
    assert guided["dict"] in {"maybe", "never"}
    assert guided["object"].isdecimal()
    assert len(guided["object"]) == 4
    assert set(guided["vllms"]) <= set("abc")
    assert len(guided["vllms"]) == 7
    assert (guided["two"]["of_worker"], guided["two"]["status"]) == (True, 400)


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


# Refusals


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ("too_long", "2000 input tokens"),
        ("unknown_id", "out of vocabulary"),
        ("embedding", "does not support pooling"),
    ],
)
def test_a_request_that_is_refused_raises_the_reason(
    generate: Ended, request_: str, message: str
) -> None:
    refused = generate["refused"][request_]
    assert (refused["of_worker"], refused["status"]) == (True, 400)
    assert message in refused["message"]


def test_a_refusal_ends_the_other_requests_and_the_engine_answers_on(generate: Ended) -> None:
    assert generate["refused"]["unfinished"] == 0
    assert generate["refused"]["afterwards"] == [ENDING]


# Conversations


def test_a_conversation_or_a_list_of_them_is_answered(generate: Ended) -> None:
    remembered = MEMORY.messages[3]["content"]
    assert generate["chat"]["one"] == [ANSWER]
    assert generate["chat"]["several"] == [remembered, ANSWER]


def test_a_template_of_the_callers_replaces_the_models(generate: Ended) -> None:
    assert generate["chat"]["template"] == [ENDING]


def test_a_turn_of_the_assistant_begins_unless_the_caller_says_no(generate: Ended) -> None:
    begins, does_not = generate["chat"]["begins"], generate["chat"]["does_not_begin"]
    assert begins[: len(does_not)] == does_not
    assert len(begins) > len(does_not)


def test_a_turn_that_was_begun_is_continued(generate: Ended) -> None:
    assert generate["chat"]["continued"] == [ANSWER[ANSWER.index(" Face") :]]


def test_a_message_that_is_wrong_is_refused_by_its_place(generate: Ended) -> None:
    refused = generate["chat"]["wrong"]
    assert (refused["of_worker"], refused["status"]) == (True, 400)
    assert "messages.0.role" in refused["message"]


def test_a_bar_is_shown_only_where_it_is_wanted(generate: Ended) -> None:
    assert "3/3" in generate["bar"]["on"]
    assert "1/1" in generate["bar"]["on"]
    assert generate["bar"]["off"] == ""
