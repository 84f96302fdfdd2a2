"""The worker's own settings."""

from pathlib import Path
from typing import Any

import pytest

from worker.errors import SettingsError
from worker.settings import (
    Settings,
    engine_environ,
    export,
    overwrite,
    platform_around,
    unheeded,
)

MODEL = {"MODEL_NAME": "org/model"}


def mistakes_of(**environ: str) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({**MODEL, **environ})
    return caught.value


def test_what_is_not_set_has_the_defaults_of_the_design() -> None:
    assert Settings.from_env(MODEL).model_dump() == {
        "model_name": "org/model",
        "base_path": Path("/runpod-volume"),
        "hf_token": None,
        "max_concurrency": 300,
        "default_batch_size": 50,
        "default_min_batch_size": 1,
        "default_batch_size_growth_factor": 3,
        "default_batch_max_delay_ms": 100,
        "default_max_tokens": 16,
        "raw_openai_output": True,
        "disable_log_stats": True,
        "disable_log_requests": True,
    }


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("BASE_PATH", "/data", Path("/data")),
        ("MAX_CONCURRENCY", "7", 7),
        ("DEFAULT_BATCH_SIZE", "20", 20),
        ("DEFAULT_MIN_BATCH_SIZE", "2.5", 2.5),
        ("DEFAULT_BATCH_SIZE_GROWTH_FACTOR", "1.5", 1.5),
        ("DEFAULT_BATCH_MAX_DELAY_MS", "0", 0),
        ("DEFAULT_MAX_TOKENS", "99", 99),
    ],
)
def test_a_setting_is_read_from_the_variable_of_its_name(
    name: str, text: str, value: object
) -> None:
    assert getattr(Settings.from_env({**MODEL, name: text}), name.lower()) == value


@pytest.mark.parametrize("text", ["0", "false", "no", "off", "False", "OFF", " no "])
def test_a_boolean_is_false_in_each_of_its_spellings(text: str) -> None:
    assert Settings.from_env({**MODEL, "RAW_OPENAI_OUTPUT": text}).raw_openai_output is False


@pytest.mark.parametrize("text", ["1", "true", "yes", "on", "TRUE", "Yes"])
def test_a_boolean_is_true_in_each_of_its_spellings(text: str) -> None:
    environ = {**MODEL, "DISABLE_LOG_STATS": text, "RAW_OPENAI_OUTPUT": text}
    assert Settings.from_env(environ).raw_openai_output is True


@pytest.mark.parametrize("text", ["t", "y", "f", "2", "-1", "truth", "nein"])
def test_other_spellings_of_a_boolean_are_refused(text: str) -> None:
    assert mistakes_of(RAW_OPENAI_OUTPUT=text).message.endswith(
        f"RAW_OPENAI_OUTPUT = {text!r}: a boolean is one of 0/1, true/false, yes/no, on/off"
    )


def test_a_boolean_that_is_one_already_is_taken_as_it_is() -> None:
    assert Settings(model_name="m", raw_openai_output=False).raw_openai_output is False


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_value_counts_as_unset(blank: str) -> None:
    environ = {**MODEL, "DEFAULT_BATCH_SIZE": blank, "HF_TOKEN": blank, "RAW_OPENAI_OUTPUT": blank}
    assert Settings.from_env(environ) == Settings.from_env(MODEL)


def test_space_around_a_value_is_not_part_of_it() -> None:
    assert Settings.from_env({"MODEL_NAME": " org/model\n"}).model_name == "org/model"


def test_variables_that_are_not_the_workers_do_not_disturb_it() -> None:
    assert Settings.from_env({**MODEL, "PATH": "/bin"}) == Settings.from_env(MODEL)


@pytest.mark.parametrize("environ", [{}, {"MODEL_NAME": " "}])
def test_a_missing_model_name_is_a_mistake_that_shows_an_example(environ: dict[str, str]) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env(environ)
    assert caught.value.message.endswith(
        "MODEL_NAME is not set: it is required, for example MODEL_NAME=Qwen/Qwen3-0.6B"
    )


@pytest.mark.parametrize(
    ("name", "text", "accepted"),
    [
        ("MAX_CONCURRENCY", "0", "greater than or equal to 1"),
        ("MAX_CONCURRENCY", "many", "a valid integer"),
        ("DEFAULT_BATCH_SIZE", "0", "greater than or equal to 1"),
        ("DEFAULT_BATCH_SIZE", "1.5", "a valid integer"),
        ("DEFAULT_MIN_BATCH_SIZE", "-1", "greater than or equal to 0"),
        ("DEFAULT_BATCH_SIZE_GROWTH_FACTOR", "inf", "a finite number"),
        ("DEFAULT_BATCH_MAX_DELAY_MS", "-5", "greater than or equal to 0"),
        ("DEFAULT_BATCH_MAX_DELAY_MS", "soon", "a valid number"),
        ("DEFAULT_MAX_TOKENS", "0", "greater than or equal to 1"),
    ],
)
def test_a_wrong_value_is_told_with_what_is_accepted(name: str, text: str, accepted: str) -> None:
    (mistake,) = mistakes_of(**{name: text}).mistakes
    assert (mistake.name, mistake.value) == (name, text)
    assert mistake.advice.startswith(accepted)


def test_all_mistakes_are_told_at_once() -> None:
    error = mistakes_of(MODEL_NAME="", MAX_CONCURRENCY="x", RAW_OPENAI_OUTPUT="maybe")
    assert [mistake.name for mistake in error.mistakes] == [
        "MAX_CONCURRENCY",
        "MODEL_NAME",
        "RAW_OPENAI_OUTPUT",
    ]


def test_a_token_shows_in_no_printed_form_of_the_settings() -> None:
    settings = Settings.from_env({**MODEL, "HF_TOKEN": "hf_secret"})
    assert "hf_secret" not in f"{settings!r} {settings} {settings.model_dump()}"
    assert settings.hf_token is not None
    assert settings.hf_token.get_secret_value() == "hf_secret"


def test_a_token_shows_in_no_message_about_other_mistakes() -> None:
    error = mistakes_of(HF_TOKEN="hf_secret", MAX_CONCURRENCY="x")
    assert "hf_secret" not in f"{error.message} {error!r}"


def test_a_secret_that_is_wrong_itself_is_masked() -> None:
    # Pydantic refuses no text as a secret today; a check that is added must not print it.
    refusal: Any = {"loc": ("hf_token",), "type": "value_error", "msg": "Value error, too short"}
    mistake = Settings._mistake(refusal, {"hf_token": "hf_secret"})
    assert str(mistake) == "HF_TOKEN = '***': too short"


def test_settings_can_not_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings.from_env(MODEL).max_concurrency = 1


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
        "VLLM_NO_USAGE_STATS": "1",
    }


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
