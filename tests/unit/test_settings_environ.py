"""What the settings read from the environment for others, and what they write into it."""

from pathlib import Path

import pytest

from worker.settings import (
    Settings,
    engine_environ,
    export,
    is_set,
    overwrite,
    platform_around,
    unheeded,
)

MODEL = {"MODEL_NAME": "org/model"}


# What the environment holds for vLLM:


def test_the_engine_gets_its_options_and_none_of_the_workers_own() -> None:
    environ = {"MAX_MODEL_LEN": "4096", "HF_TOKEN": "x", "DISABLE_LOG_STATS": "1", "BASE_PATH": "/"}
    assert engine_environ(environ) == {"MAX_MODEL_LEN": "4096"}


@pytest.mark.parametrize(
    ("ours", "option"),
    [
        ("MODEL_NAME", "MODEL"),
        ("MODEL_REVISION", "REVISION"),
        ("TOKENIZER_NAME", "TOKENIZER"),
        ("CUSTOM_CHAT_TEMPLATE", "CHAT_TEMPLATE"),
        ("OPENAI_RESPONSE_ROLE", "RESPONSE_ROLE"),
        ("OPENAI_SERVED_MODEL_NAME_OVERRIDE", "SERVED_MODEL_NAME"),
    ],
)
def test_a_name_of_ours_hands_its_value_to_the_option_and_wins_over_it(
    ours: str, option: str
) -> None:
    assert engine_environ({ours: "ours"}) == {option: "ours"}
    assert engine_environ({option: "theirs", ours: "ours"}) == {option: "ours"}
    assert engine_environ({option: "theirs"}) == {option: "theirs"}


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_name_of_ours_leaves_the_option_alone(blank: str) -> None:
    assert engine_environ({"REVISION": "abc", "MODEL_REVISION": blank}) == {"REVISION": "abc"}


def test_blank_options_are_unset_and_others_are_stripped() -> None:
    assert engine_environ({"DTYPE": " ", "SEED": " 7 "}) == {"SEED": "7"}


# What has no effect:


def test_a_removed_setting_is_warned_about_with_what_does_its_work_today() -> None:
    (warning,) = unheeded([], {"SWAP_SPACE": "4"})
    assert warning.startswith("SWAP_SPACE has no effect: ")
    assert "CPU_OFFLOAD_GB" in warning


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("MAX_MODEL_LENGTH", "MAX_MODEL_LEN"),
        ("MAX_CONCURENCY", "MAX_CONCURRENCY"),
        ("MODELNAME", "MODEL_NAME"),
        ("CUSTOM_CHAT_TEMPLATES", "CUSTOM_CHAT_TEMPLATE"),
    ],
)
def test_a_near_miss_is_warned_about_with_the_name_that_was_meant(written: str, meant: str) -> None:
    assert unheeded(["MAX_MODEL_LEN"], {written: "1"}) == [
        f"{written} is not a setting: did you mean {meant}?"
    ]


def test_names_that_have_an_effect_or_are_unrelated_are_passed_over_in_silence() -> None:
    names = ["PATH", "HOME", "HOSTNAME", "CUDA_VISIBLE_DEVICES", "RUNPOD_POD_ID", "LANG", "PWD"]
    known = ["MAX_MODEL_LEN", "MODEL_NAME", "MODEL_REVISION", "BASE_PATH"]
    assert unheeded(["MAX_MODEL_LEN", "MODEL"], dict.fromkeys(names + known, "1")) == []


def test_every_variable_without_effect_is_told() -> None:
    environ = {"SWAP_SPACE": "4", "MAX_CONTEXT_LEN_TO_CAPTURE": "8", "HF_TOKENN": "x"}
    assert [warning.split()[0] for warning in unheeded([], environ)] == [
        "SWAP_SPACE",
        "MAX_CONTEXT_LEN_TO_CAPTURE",
        "HF_TOKENN",
    ]


# What is written:


def test_export_sets_what_libraries_read_and_keeps_what_the_operator_set() -> None:
    environ = {"RUNPOD_LOG_LEVEL": "DEBUG"}
    Settings.from_env({**MODEL, "BASE_PATH": "/nowhere"}).export(environ)
    assert environ == {
        "RUNPOD_LOG_LEVEL": "DEBUG",
        "RUNPOD_SKIP_GPU_CHECK": "true",
        "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_NO_USAGE_STATS": "1",
    }


def test_export_takes_a_blank_variable_for_unset() -> None:
    environ = {"RUNPOD_LOG_LEVEL": " "}
    Settings.from_env(MODEL).export(environ)
    assert environ["RUNPOD_LOG_LEVEL"] == "INFO"


def test_the_sdks_log_level_is_info_by_default() -> None:
    environ: dict[str, str] = {}
    Settings.from_env(MODEL).export(environ)
    assert environ["RUNPOD_LOG_LEVEL"] == "INFO"


def test_the_hubs_cache_lies_on_the_volume_if_there_is_one(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    Settings.from_env({**MODEL, "BASE_PATH": str(tmp_path)}).export(environ)
    assert environ["HF_HOME"] == str(tmp_path / "huggingface-cache")


def test_a_hub_cache_that_the_operator_chose_stays(tmp_path: Path) -> None:
    environ = {"HF_HOME": "/mine"}
    Settings.from_env({**MODEL, "BASE_PATH": str(tmp_path)}).export(environ)
    assert environ["HF_HOME"] == "/mine"


def test_export_keeps_and_overwrite_replaces() -> None:
    environ = {"A": "operator's"}
    export({"A": "ours", "B": "ours"}, environ)
    assert environ == {"A": "operator's", "B": "ours"}
    overwrite("A", "ours", environ)
    assert environ["A"] == "ours"


@pytest.mark.parametrize(
    ("environ", "around"),
    [
        ({}, False),
        ({"RUNPOD_REALTIME_PORT": "0"}, False),
        ({"RUNPOD_REALTIME_PORT": "8080"}, True),
        ({"RUNPOD_WEBHOOK_GET_JOB": "http://x?"}, True),
    ],
)
def test_a_platform_is_around_where_the_sdk_finds_jobs(
    environ: dict[str, str], around: bool
) -> None:
    assert platform_around(environ) is around


@pytest.mark.parametrize(
    ("environ", "set_"), [({"A": "0"}, True), ({}, False), ({"A": ""}, False), ({"A": " "}, False)]
)
def test_a_variable_is_set_if_it_holds_anything(environ: dict[str, str], set_: bool) -> None:
    assert is_set("A", environ) is set_
