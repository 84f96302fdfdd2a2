"""The worker's own settings."""

from pathlib import Path
from typing import Any

import pytest

from worker.settings import Settings
from worker.settings.mistakes import SettingsError

MODEL = {"MODEL_NAME": "org/model"}


def mistakes_of(**environ: str) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({**MODEL, **environ})
    return caught.value


def test_unset_settings_have_the_defaults_of_the_design() -> None:
    assert Settings.from_env(MODEL).model_dump() == {
        "model_name": "org/model",
        "embedding_model_name": None,
        "base_path": Path("/runpod-volume"),
        "compile_cache": True,
        "fast_load": False,
        "hf_token": None,
        "serve_api_key": None,
        "serve_max_connections": 1000,
        "serve_timeout_s": 30,
        "allowed_origins": (),
        "files_path": None,
        "files_input_paths": ("inbox", "uploads"),
        "files_output_path": "out",
        "files_max_mb": 512,
        "files_max_total_mb": 20_000,
        "files_retention_days": 30,
        "batch_api_key": None,
        "batch_concurrency": "auto",
        "batch_max_requests": 50_000,
        "fine_tune": None,
        "fine_tune_max_length": 4096,
        "wandb_api_key": None,
        "execution_timeout_s": 600,
        "runpod_endpoint_id": None,
        "runpod_endpoint_base_url": "https://api.runpod.ai/v2",
        "runpod_volume_id": None,
        "max_concurrency": 300,
        "allowed_xargs": (),
        "max_input_mb": 20,
        "max_input_values": 100_000,
        "max_input_depth": 64,
        "max_input_items": 10_000,
        "shutdown_grace_s": 25,
        "min_model_len": 1024,
        "max_engine_restarts": 2,
        "engine_hang_s": 8,
        "start_stall_s": 900,
        "default_batch_size": 50,
        "default_min_batch_size": 1,
        "default_batch_size_growth_factor": 3,
        "default_batch_max_delay_ms": 100,
        "default_max_tokens": 16,
        "raw_openai_output": True,
        "strict_requests": False,
        "structured_compile_s": 30,
        "structured_max_nesting": 2,
        "structured_max_repetitions": 10_000,
        "system_prompt": None,
        "disabled_routes": (),
        "allow_unload_lora_adapter": False,
        "allow_remote_media": True,
        "media_max_mb": 20,
        "media_max_parts": 16,
        "media_fetch_timeout_s": 10,
        "disable_log_stats": True,
        "disable_log_requests": True,
        "answer_failed_start": True,
        "log_format": "text",
        "vllm_config_file": None,
        "vllm_extra_args": None,
    }


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("BASE_PATH", "/data", Path("/data")),
        ("MAX_CONCURRENCY", "7", 7),
        ("MAX_CONCURRENCY", "auto", "auto"),
        ("MAX_CONCURRENCY", " Auto", "auto"),
        ("ALLOWED_XARGS", "alpha, beta,", ("alpha", "beta")),
        ("MAX_INPUT_MB", "0.5", 0.5),
        ("DEFAULT_BATCH_SIZE", "20", 20),
        ("DEFAULT_MIN_BATCH_SIZE", "2.5", 2.5),
        ("DEFAULT_BATCH_SIZE_GROWTH_FACTOR", "1.5", 1.5),
        ("DEFAULT_BATCH_MAX_DELAY_MS", "0", 0),
        ("DEFAULT_MAX_TOKENS", "99", 99),
        ("LOG_FORMAT", "json", "json"),
        ("FINE_TUNE", "Beside", "beside"),
        ("FINE_TUNE", "exclusive", "exclusive"),
        ("FINE_TUNE_MAX_LENGTH", "512", 512),
    ],
)
def test_a_setting_is_read_from_the_variable_of_its_name(
    name: str, text: str, value: object
) -> None:
    assert getattr(Settings.from_env({**MODEL, name: text}), name.lower()) == value


@pytest.mark.parametrize("text", ["0", "false", "no", "off", "False", "OFF", " no "])
def test_a_boolean_is_false_in_all_of_its_spellings(text: str) -> None:
    assert Settings.from_env({**MODEL, "RAW_OPENAI_OUTPUT": text}).raw_openai_output is False


@pytest.mark.parametrize("text", ["1", "true", "yes", "on", "TRUE", "Yes"])
def test_a_boolean_is_true_in_all_of_its_spellings(text: str) -> None:
    environ = {**MODEL, "DISABLE_LOG_STATS": text, "RAW_OPENAI_OUTPUT": text}
    assert Settings.from_env(environ).raw_openai_output is True


@pytest.mark.parametrize("text", ["t", "y", "f", "2", "-1", "truth", "nein"])
def test_other_spellings_of_a_boolean_are_refused(text: str) -> None:
    assert mistakes_of(RAW_OPENAI_OUTPUT=text).message.endswith(
        f"RAW_OPENAI_OUTPUT = {text!r}: one of 0/1, true/false, yes/no, on/off, "
        "for example RAW_OPENAI_OUTPUT=1"
    )


def test_adapters_are_trained_in_one_of_three_ways() -> None:
    assert "FINE_TUNE = 'on': 'beside', 'exclusive' or 'off'" in mistakes_of(FINE_TUNE="on").message


def test_another_format_of_the_log_is_refused() -> None:
    assert mistakes_of(LOG_FORMAT="xml").message.endswith(
        "LOG_FORMAT = 'xml': 'text' or 'json', for example LOG_FORMAT=text"
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
    disturbed = Settings.from_env({**MODEL, "PATH": "/bin"})
    assert disturbed.model_dump() == Settings.from_env(MODEL).model_dump()


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
        ("MAX_CONCURRENCY", "0", "a whole number of at least 1, or auto"),
        ("MAX_CONCURRENCY", "1.5", "a whole number of at least 1, or auto"),
        ("MAX_CONCURRENCY", "automatic", "a whole number of at least 1, or auto"),
        ("DEFAULT_BATCH_SIZE", "0", "greater than or equal to 1"),
        ("DEFAULT_BATCH_SIZE", "1.5", "a valid integer"),
        ("DEFAULT_MIN_BATCH_SIZE", "-1", "greater than or equal to 0"),
        ("DEFAULT_BATCH_SIZE_GROWTH_FACTOR", "inf", "a finite number"),
        ("DEFAULT_BATCH_MAX_DELAY_MS", "-5", "greater than or equal to 0"),
        ("DEFAULT_BATCH_MAX_DELAY_MS", "soon", "a valid number"),
        ("DEFAULT_MAX_TOKENS", "0", "greater than or equal to 1"),
    ],
)
def test_a_wrong_value_is_reported_with_what_is_accepted(
    name: str, text: str, accepted: str
) -> None:
    (mistake,) = mistakes_of(**{name: text}).mistakes
    assert (mistake.name, mistake.value) == (name, text)
    assert mistake.advice.startswith(accepted)


def test_all_mistakes_are_reported_at_once() -> None:
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


@pytest.mark.parametrize("value", ["/chat,/metrics", ' ["/chat", "/metrics"]', "/chat, /metrics,"])
def test_routes_to_turn_off_are_a_list(value: str) -> None:
    read = Settings.from_env({**MODEL, "DISABLED_ROUTES": value})
    assert read.disabled_routes == ("/chat", "/metrics")


@pytest.mark.parametrize("value", ["/health", "chat", "/chat,/v1/models", "[5]"])
def test_a_route_that_can_not_be_turned_off_is_a_mistake(value: str) -> None:
    (mistake,) = mistakes_of(DISABLED_ROUTES=value).mistakes
    assert "can't be turned off, only /chat, /metrics, /openapi.json, /version" in mistake.advice
