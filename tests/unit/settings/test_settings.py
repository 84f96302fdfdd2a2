"""The worker's own settings."""

from pathlib import Path
from typing import Any

import pytest

from worker.settings import Settings
from worker.settings.mistakes import SettingsError

MODEL = {"MODEL_NAME": "org/model"}
FALSE = ["0", "false", "no", "off", "False", "OFF", " no "]
TRUE = ["1", "true", "yes", "on", "TRUE", "Yes"]
NEITHER = ["t", "y", "f", "2", "-1", "truth", "nein"]
BOOLEANS = "one of 0/1, true/false, yes/no, on/off, for example RAW_OPENAI_OUTPUT=1"
ROUTES = "can't be turned off, only /chat, /metrics, /openapi.json, /version"
NO_DIRECTORIES = ["/no/model", "./no-model", "../no-model", "~/no-model"]


def mistakes_of(**environ: str) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({**MODEL, **environ})
    return caught.value


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
        ("DISABLED_ROUTES", "/chat,/metrics", ("/chat", "/metrics")),
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
        ("FINE_TUNE", "on", "'beside', 'exclusive' or 'off'"),
        ("LOG_FORMAT", "xml", "'text' or 'json', for example LOG_FORMAT=text"),
        *(("RAW_OPENAI_OUTPUT", text, BOOLEANS) for text in NEITHER),
        ("DISABLED_ROUTES", "/health", f"'/health' {ROUTES}"),
        ("DISABLED_ROUTES", "chat", f"'chat' {ROUTES}"),
        ("DISABLED_ROUTES", "/chat,/v1/models", f"'/v1/models' {ROUTES}"),
        ("DISABLED_ROUTES", "[5]", f"'5' {ROUTES}"),
        *(("MODEL_NAME", path, "there is no such directory") for path in NO_DIRECTORIES),
    ],
)
def test_a_wrong_value_is_reported(name: str, text: str, accepted: str) -> None:
    (mistake,) = mistakes_of(**{name: text}).mistakes
    assert str(mistake).startswith(f"{name} = {text!r}: {accepted}")


def test_all_mistakes_are_reported_at_once() -> None:
    error = mistakes_of(MODEL_NAME="", MAX_CONCURRENCY="x", RAW_OPENAI_OUTPUT="maybe")
    assert [mistake.name for mistake in error.mistakes] == [
        "MAX_CONCURRENCY",
        "MODEL_NAME",
        "RAW_OPENAI_OUTPUT",
    ]


@pytest.mark.parametrize("name", ["HF_TOKEN", "SERVE_API_KEY"])
def test_a_secret_shows_in_no_printed_form_of_the_settings(name: str) -> None:
    settings = Settings.from_env({**MODEL, name: "sk-canary"})
    assert "sk-canary" not in f"{settings!r} {settings} {settings.model_dump()}"
    assert getattr(settings, name.lower()).get_secret_value() == "sk-canary"


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
