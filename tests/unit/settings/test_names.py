"""The names of settings: removed ones, and near misses."""

import pytest

from worker.settings.names import MEANT, REMOVED, SPECULATIVE, SPELLINGS, Names, canonical, meant

OWN = frozenset({"MODEL_NAME", "HF_TOKEN", "MAX_CONCURRENCY", "BASE_PATH"})
OPTIONS = frozenset({"MODEL", "MAX_MODEL_LEN", "SEED", "TOKENIZER"})


def warnings(*given: str, **idle: str) -> list[str]:
    names = Names(OWN, OPTIONS, idle, frozenset({"VLLM_LOGGING_LEVEL"}))
    return names.without_effect(given)


def test_a_setting_that_vllm_dropped_warns_since_when_and_what_replaces_it() -> None:
    assert warnings("SWAP_SPACE") == [
        "SWAP_SPACE has no effect: vLLM has had no such option since 0.18; "
        "CPU_OFFLOAD_GB offloads weights, KV_OFFLOADING_SIZE the KV cache"
    ]


def test_a_removed_option_without_a_replacement_warns_with_its_last_release() -> None:
    assert warnings("ENABLE_LORA_BIAS") == [
        "ENABLE_LORA_BIAS has no effect: vLLM has had no such option since 0.11"
    ]


def test_a_former_setting_of_the_worker_warns_with_what_replaces_it() -> None:
    (warning,) = warnings("VLLM_BASE_URL")
    assert warning.startswith("VLLM_BASE_URL has no effect: the engine runs inside the worker")


@pytest.mark.parametrize(
    ("written", "right"),
    [
        ("MAX_MODEL_LENGTH", "MAX_MODEL_LEN"),
        ("MAX_MODLE_LEN", "MAX_MODEL_LEN"),
        ("MAX_CONCURENCY", "MAX_CONCURRENCY"),
        ("MODELNAME", "MODEL_NAME"),
        ("CUSTOM_CHAT_TEMPLATES", "CUSTOM_CHAT_TEMPLATE"),
        ("VLLM_MAX_MODEL_LEN", "MAX_MODEL_LEN"),
        ("VLLM_LOGING_LEVEL", "VLLM_LOGGING_LEVEL"),
        ("HUGGINGFACE_TOKEN", "HF_TOKEN"),
        ("HF_HUB_OFLINE", "HF_HUB_OFFLINE"),
        ("MINBATCH_SIZE", "MIN_BATCH_SIZE"),
    ],
)
def test_a_near_miss_warns_with_the_nearest_name(written: str, right: str) -> None:
    assert warnings(written) == [f"{written} is not a setting: did you mean {right}?"]


@pytest.mark.parametrize("name", ["max_model_len", "Max_Model_Len", "MAX-MODEL-LEN", "--seed"])
def test_a_name_in_another_case_warns_with_the_right_spelling(name: str) -> None:
    (warning,) = warnings(name)
    assert warning.startswith(f"{name} is not a setting: did you mean ")


def test_a_dropped_option_is_known_under_vllms_prefix_too() -> None:
    (warning,) = warnings("VLLM_SWAP_SPACE")
    assert "no such option since 0.18" in warning


def test_an_option_of_a_later_vllm_warns_that_it_is_one() -> None:
    assert warnings("WATCHDOG_CONFIG") == [
        "WATCHDOG_CONFIG has no effect: vLLM has it from 0.33.0 on"
    ]


def test_names_that_have_an_effect_or_are_unrelated_are_passed_over_in_silence() -> None:
    names = ["PATH", "HOME", "HOSTNAME", "CUDA_VISIBLE_DEVICES", "RUNPOD_POD_ID", "LANG", "PWD"]
    spellings = ["MIN_BATCH_SIZE", "ENABLE_LOG_REQUESTS", "NUM_SPECULATIVE_TOKENS", "REVISION"]
    assert warnings(*names, *spellings, *OWN, *OPTIONS, "http_proxy", "VLLM_LOGGING_LEVEL") == []


def test_every_variable_without_effect_is_warned_about_in_order() -> None:
    found = warnings("SWAP_SPACE", "MAX_CONTEXT_LEN_TO_CAPTURE", "HF_TOKENN", "SEED", SEED="idle")
    assert [warning.split()[0] for warning in found] == [
        "HF_TOKENN",
        "MAX_CONTEXT_LEN_TO_CAPTURE",
        "SEED",
        "SWAP_SPACE",
    ]
    assert found[2] == "SEED has no effect: idle"


def test_removed_names_and_near_misses_are_not_settings_and_lead_to_one() -> None:
    accepted = {*SPELLINGS, *SPECULATIVE}
    assert not REMOVED.keys() & accepted
    assert not MEANT.keys() & (accepted | REMOVED.keys())
    assert meant("MODEL_ID", OWN) == "MODEL_NAME"


# Settings of the second engine:


def test_without_a_second_model_its_settings_warn_that_they_have_no_effect() -> None:
    idle = ["EMBEDDING_MAX_MODEL_LEN", "EMBEDDING_SEED", "EMBEDDING_TOKENIZER_NAME"]
    assert warnings(*idle) == [
        f"{name} has no effect without EMBEDDING_MODEL_NAME" for name in idle
    ]


@pytest.mark.parametrize("model", ["EMBEDDING_MODEL_NAME", "EMBEDDING_MODEL"])
def test_with_a_second_model_its_settings_have_their_effect(model: str) -> None:
    assert warnings(model, "EMBEDDING_SEED", "EMBEDDING_TOKENIZER_NAME") == []


def test_a_misspelled_setting_of_the_second_engine_warns() -> None:
    assert warnings("EMBEDDING_MODEL_NAME", "EMBEDDING_MAX_MODEL_LENGTH") == [
        "EMBEDDING_MAX_MODEL_LENGTH is not a setting: did you mean EMBEDDING_MAX_MODEL_LEN?"
    ]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("MODEL", "MODEL_NAME"),
        ("EMBEDDING_MODEL", "EMBEDDING_MODEL_NAME"),
        ("EMBEDDING_REVISION", "EMBEDDING_MODEL_REVISION"),
        ("SEED", "SEED"),
        ("EMBEDDING_SEED", "EMBEDDING_SEED"),
    ],
)
def test_a_setting_has_one_name(written: str, name: str) -> None:
    assert canonical(written) == name
