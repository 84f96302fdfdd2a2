"""The worker's own settings, and values as operators write them and messages display them."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from worker.settings import Settings
from worker.settings.mistakes import SettingsError
from worker.settings.values import (
    model_name_problem,
    parse_scalar,
    redact_by_setting_name,
    redact_command_line,
    redact_json_and_urls,
)

MODEL = {"MODEL_NAME": "org/model"}
FALSE = ["0", "false", "OFF", " no "]
TRUE = ["1", "true", "on", "Yes"]
BOOLEANS = "one of 0/1, true/false, yes/no, on/off, for example RAW_OPENAI_OUTPUT=1"
GROUPS = "is neither a route nor one of files, batches, fine-tunes, long-work"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("MAX_CONCURRENCY", "7", 7),
        ("MAX_CONCURRENCY", "auto", "auto"),
        ("MAX_CONCURRENCY", " Auto", "auto"),
        ("ALLOWED_XARGS", "alpha, beta,", ("alpha", "beta")),
        ("MAX_INPUT_MB", "0.5", 0.5),
        ("LOG_FORMAT", "json", "json"),
        ("FINE_TUNE", "Beside", "beside"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://h:1/p", "https://h:1/p"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "GRPC", "grpc"),
        ("DISABLED_ROUTES", ' ["/chat", "/metrics"]', ("/chat", "/metrics")),
        ("DISABLED_ROUTES", "/chat, get /files,", ("/chat", "get /files")),
        *(("RAW_OPENAI_OUTPUT", text, False) for text in FALSE),
        *(("RAW_OPENAI_OUTPUT", text, True) for text in TRUE),
        # Space around a value is not part of it.
        ("MODEL_NAME", " org/model\n", "org/model"),
        ("MODEL_NAME", "httpx/model", "httpx/model"),
    ],
)
def test_a_setting_is_read_from_its_variable(name: str, text: str, value: object) -> None:
    assert getattr(Settings.from_env({**MODEL, name: text}), name.lower()) == value


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_value_counts_as_unset(blank: str) -> None:
    environ = {**MODEL, "DEFAULT_BATCH_SIZE": blank, "HF_TOKEN": blank, "RAW_OPENAI_OUTPUT": blank}
    assert Settings.from_env(environ) == Settings.from_env(MODEL)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("MAX_CONCURRENCY", "1.5", "a whole number of at least 1, or auto"),
        ("RAW_OPENAI_OUTPUT", "t", BOOLEANS),
        ("FINE_TUNE", "on", "'beside', 'exclusive' or 'off'"),
        ("LOG_FORMAT", "xml", "'text' or 'json', for example LOG_FORMAT=text"),
        ("DISABLED_ROUTES", "/chat,/v1/file", "did you mean '/v1/files' instead of '/v1/file'?"),
        ("DISABLED_ROUTES", "batchs", "did you mean 'batches' instead of 'batchs'?"),
        ("DISABLED_ROUTES", "PUT /v1/files", "did you mean 'POST /v1/files'"),
        ("DISABLED_ROUTES", "/health", "'/health' is requested by load balancers"),
        ("DISABLED_ROUTES", "[5]", f"'5' {GROUPS}, for example DISABLED_ROUTES=long-work"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "an address that begins with http://"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "'http/protobuf' or 'grpc'"),
    ],
)
def test_a_wrong_value_is_reported(name: str, text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({**MODEL, name: text})
    (mistake,) = caught.value.mistakes
    assert str(mistake).startswith(f"{name} = {text!r}: {message}")


@pytest.mark.parametrize("name", ["HF_TOKEN", "SERVE_API_KEY"])
def test_printed_settings_do_not_reveal_a_secret(name: str) -> None:
    settings = Settings.from_env({**MODEL, name: "sk-canary"})
    assert "sk-canary" not in f"{settings!r} {settings} {settings.model_dump()}"
    assert getattr(settings, name.lower()).get_secret_value() == "sk-canary"


def test_a_secret_with_a_wrong_value_is_masked() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({**MODEL, "OTEL_EXPORTER_OTLP_HEADERS": "a=b,sk-canary"})
    (mistake,) = caught.value.mistakes
    advice = "pairs name=value, separated by commas"
    assert str(mistake) == f"OTEL_EXPORTER_OTLP_HEADERS = '***': {advice}"


@pytest.mark.parametrize(
    ("address", "redacted"),
    [
        ("https://user:canary@h:4318/p", "https://***@h:4318/p"),
        ("https://canary@h", "https://***@h"),
        ("https://:canary@h", "https://***@h"),
        ("https://user:a@can/ary@h", "https://***@h"),
        ("https://user:a/canary?@h", "https://***@h"),
    ],
)
def test_an_address_with_a_password_is_refused_without_the_password(
    address: str, redacted: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({**MODEL, "OTEL_EXPORTER_OTLP_ENDPOINT": address})
    message = str(caught.value.mistakes[0])
    assert message.startswith(f"OTEL_EXPORTER_OTLP_ENDPOINT = '{redacted}': an address without")
    assert "set OTEL_EXPORTER_OTLP_HEADERS=authorization=Basic%20<" in message
    for redact in (redact_json_and_urls, partial(redact_by_setting_name, "MAX_MODEL_LEN")):
        assert redact(address) == redacted


@pytest.mark.parametrize(
    "text", ["s3://bucket/model@v1", "https://h:1/p", "a@b", "//h/a b@c", "http://h/a?b=c@d"]
)
def test_a_value_without_a_password_is_not_redacted(text: str) -> None:
    assert redact_json_and_urls(text) == text


def test_headers_are_read_like_opentelemetrys_and_each_is_a_secret() -> None:
    text = "Authorization = Bearer%20a=b%2Cc, x-team=,"
    settings = Settings.from_env({**MODEL, "OTEL_EXPORTER_OTLP_HEADERS": text})
    assert settings.otlp_headers == {"authorization": "Bearer a=b,c", "x-team": ""}
    assert settings.secret_values() == [text, "Bearer a=b,c", ""]


@pytest.mark.parametrize(
    ("text", "value"),
    [("False", False), ("true", True), ("0.5", 0.5), ("null", None), ("1a", "1a")],
)
def test_the_type_of_a_scalar_is_inferred(text: str, value: Any) -> None:
    read = parse_scalar(text)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        *((name, None) for name in ("gpt2", "org/my-0.6B", "org/model:Q4_K_M", "s3://bucket/x")),
        ("<folder>/a model", None),
        ('"Qwen/x"', "without address, quotes"),
        ("Qwen/x/", "written as owner/name"),
        ("Qwen/x@main", "its revision has a setting of its own"),
        ("~/x", "no such directory"),
        (f"/{'x' * 5000}", "no such directory"),
        ("x" * 300, "written as owner/name"),
    ],
)
def test_a_model_is_a_directory_or_a_possible_name(
    model: str, reason: str | None, tmp_path: Path
) -> None:
    (tmp_path / "a model").mkdir()
    problem = model_name_problem(model.replace("<folder>", str(tmp_path)))
    assert problem is None if reason is None else reason in (problem or "")


SECRETS = ["hf-token", "api-key", "aws-secret", "db-password"]


@pytest.mark.parametrize(
    ("line", "redacted"),
    [
        ("--api-key 'sk canary two' --seed 1", "--api-key *** --seed 1"),
        ("--API-KEY canary", "--API-KEY ***"),
        ("--api-key=canary", "--api-key=***"),
        ("HF_TOKEN=canary", "HF_TOKEN=***"),
        ('--hf-overrides \'{"a": "canary"}\'', "--hf-overrides {...}"),
        ("--hf-overrides={canary}", "--hf-overrides={...}"),
        ("--max-num-batched-tokens 5", "--max-num-batched-tokens 5"),
        ("--api-key 'canary", "--api-key ***"),
        *((f"--{end} canary --{end}=canary", f"--{end} *** --{end}=***") for end in SECRETS),
    ],
)
def test_secrets_in_a_command_line_are_redacted(line: str, redacted: str) -> None:
    assert redact_command_line(line) == redacted


def test_secret_values_are_redacted() -> None:
    for end in SECRETS:
        assert redact_by_setting_name(end.replace("-", "_").upper(), "canary") == "***"
    assert redact_by_setting_name("MAX_TOKENS", "x") == "x"
    assert [redact_json_and_urls(text) for text in ('{"a": 1}', "[1]")] == ["{...}", "[...]"]
