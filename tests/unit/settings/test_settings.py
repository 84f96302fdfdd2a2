"""The worker's own settings."""

from typing import Any

import pytest

from worker.settings import Settings
from worker.settings.mistakes import SettingsError

MODEL = {"MODEL_NAME": "org/model"}
FALSE = ["0", "false", "no", "off", "False", "OFF", " no "]
TRUE = ["1", "true", "yes", "on", "TRUE", "Yes"]
BOOLEANS = "one of 0/1, true/false, yes/no, on/off, for example RAW_OPENAI_OUTPUT=1"
ROUTES = "can't be turned off, only /chat, /metrics, /openapi.json, /version"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("MAX_CONCURRENCY", "7", 7),
        ("MAX_CONCURRENCY", "auto", "auto"),
        ("MAX_CONCURRENCY", " Auto", "auto"),
        ("ALLOWED_XARGS", "alpha, beta,", ("alpha", "beta")),
        ("MAX_INPUT_MB", "0.5", 0.5),
        ("DEFAULT_MIN_BATCH_SIZE", "2.5", 2.5),
        ("DEFAULT_BATCH_MAX_DELAY_MS", "0", 0),
        ("DEFAULT_MAX_TOKENS", "99", 99),
        ("LOG_FORMAT", "json", "json"),
        ("FINE_TUNE", "Beside", "beside"),
        ("FINE_TUNE", "exclusive", "exclusive"),
        ("FINE_TUNE_MAX_LENGTH", "512", 512),
        ("DISABLED_ROUTES", ' ["/chat", "/metrics"]', ("/chat", "/metrics")),
        ("DISABLED_ROUTES", "/chat, /metrics,", ("/chat", "/metrics")),
        *(("RAW_OPENAI_OUTPUT", text, False) for text in FALSE),
        *(("RAW_OPENAI_OUTPUT", text, True) for text in TRUE),
        # Space around a value is not part of it.
        ("MODEL_NAME", " org/model\n", "org/model"),
        ("MODEL_NAME", "httpx/model", "httpx/model"),
    ],
)
def test_a_setting_is_read_from_its_variable(name: str, text: str, value: object) -> None:
    assert getattr(Settings.from_env({**MODEL, name: text}), name.lower()) == value


def test_a_boolean_that_is_one_already_is_taken_as_it_is() -> None:
    assert Settings(model_name="m", raw_openai_output=False).raw_openai_output is False


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_value_counts_as_unset(blank: str) -> None:
    environ = {**MODEL, "DEFAULT_BATCH_SIZE": blank, "HF_TOKEN": blank, "RAW_OPENAI_OUTPUT": blank}
    assert Settings.from_env(environ) == Settings.from_env(MODEL)


@pytest.mark.parametrize(
    ("name", "text", "accepted"),
    [
        ("MAX_CONCURRENCY", "1.5", "a whole number of at least 1, or auto"),
        ("MAX_CONCURRENCY", "automatic", "a whole number of at least 1, or auto"),
        ("DEFAULT_MAX_TOKENS", "0", "greater than or equal to 1"),
        ("RAW_OPENAI_OUTPUT", "t", BOOLEANS),
        ("FINE_TUNE", "on", "'beside', 'exclusive' or 'off'"),
        ("LOG_FORMAT", "xml", "'text' or 'json', for example LOG_FORMAT=text"),
        ("DISABLED_ROUTES", "/chat,/v1/models", f"'/v1/models' {ROUTES}"),
        ("DISABLED_ROUTES", "[5]", f"'5' {ROUTES}"),
    ],
)
def test_a_wrong_value_is_reported(name: str, text: str, accepted: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({**MODEL, name: text})
    (mistake,) = caught.value.mistakes
    assert str(mistake).startswith(f"{name} = {text!r}: {accepted}")


@pytest.mark.parametrize("name", ["HF_TOKEN", "SERVE_API_KEY"])
def test_a_secret_shows_in_no_printed_form_of_the_settings(name: str) -> None:
    settings = Settings.from_env({**MODEL, name: "sk-canary"})
    assert "sk-canary" not in f"{settings!r} {settings} {settings.model_dump()}"
    assert getattr(settings, name.lower()).get_secret_value() == "sk-canary"


def test_a_secret_that_is_wrong_itself_is_masked() -> None:
    # Pydantic refuses no text as a secret today; a check that is added must not print it.
    refusal: Any = {"loc": ("hf_token",), "type": "value_error", "msg": "Value error, too short"}
    mistake = Settings._mistake(refusal, {"hf_token": "hf_secret"})
    assert str(mistake) == "HF_TOKEN = '***': too short"
