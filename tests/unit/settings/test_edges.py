"""Edge cases of settings: rare spellings, files that are nearly right, and secrets."""

from pathlib import Path

import pytest

from worker.settings import Settings, sources
from worker.settings.mistakes import Mistake, SettingsError
from worker.settings.names import Names
from worker.settings.sources import Given
from worker.settings.values import redact_line, redact_setting


def gather(**environ: str) -> Given:
    return sources.gather(environ, Path("/nowhere"))


def written(tmp_path: Path, content: str) -> str:
    file = tmp_path / "config.yaml"
    file.write_text(content)
    return str(file)


# A model's name:


@pytest.mark.parametrize("path", ["/no/model", "./no-model", "../no-model", "~/no-model"])
def test_a_path_that_leads_nowhere_is_never_taken_for_a_repository(path: str) -> None:
    with pytest.raises(SettingsError, match="there is no such directory"):
        Settings.from_env({"MODEL_NAME": path})


def test_a_repository_may_begin_like_an_address() -> None:
    assert Settings.from_env({"MODEL_NAME": "httpx/model"}).model_name == "httpx/model"


def test_a_directory_may_have_spaces_in_its_name_but_a_repository_may_not(tmp_path: Path) -> None:
    (tmp_path / "my model").mkdir()
    path = str(tmp_path / "my model")
    assert Settings.from_env({"MODEL_NAME": path}).model_name == path
    with pytest.raises(SettingsError, match="written as owner/name"):
        Settings.from_env({"MODEL_NAME": "org/my model"})


# Exported variables:


def test_the_choice_of_the_hubs_cache_is_reported_only_where_it_was_made(tmp_path: Path) -> None:
    settings = Settings.from_env({"MODEL_NAME": "org/model", "BASE_PATH": str(tmp_path)})
    choices = [str(choice) for choice in settings.export({"RUNPOD_LOG_LEVEL": "ERROR"})]
    assert choices == [f"HF_HOME={tmp_path}/huggingface-cache (in BASE_PATH)"]
    assert settings.export({"RUNPOD_LOG_LEVEL": "ERROR", "HF_HOME": "/mine"}) == []


# Secrets:


def test_the_servers_key_shows_in_no_printed_form_of_the_settings() -> None:
    settings = Settings.from_env({"MODEL_NAME": "org/model", "SERVE_API_KEY": "sk-canary"})
    assert "sk-canary" not in f"{settings!r} {settings} {settings.model_dump()}"


@pytest.mark.parametrize("name", ["HF_TOKEN", "API_KEY", "AWS_SECRET", "DB_PASSWORD"])
def test_a_secret_is_known_by_the_end_of_its_name(name: str) -> None:
    assert redact_setting(name, "sk-canary") == "***"
    flag = f"--{name.lower().replace('_', '-')}"
    assert redact_line(f"{flag} sk-canary {flag}=sk-canary") == f"{flag} *** {flag}=***"


def test_a_secret_shows_in_no_mistake_of_a_file_or_of_a_line(tmp_path: Path) -> None:
    for content in (
        "hf-token: sk-canary-1\nHF_TOKEN: sk-canary-2",
        "vllm-extra-args: --api-key sk-canary",
    ):
        (mistake,) = gather(VLLM_CONFIG_FILE=written(tmp_path, content)).mistakes
        assert "sk-canary" not in str(mistake)
    (mistake,) = gather(VLLM_EXTRA_ARGS="--api-key sk-canary --seed '5").mistakes
    assert "sk-canary" not in str(mistake)


# Files:


def test_space_around_the_name_of_a_file_is_not_part_of_it(tmp_path: Path) -> None:
    given = gather(VLLM_CONFIG_FILE=f" {written(tmp_path, 'seed: 7')} ")
    assert (given.mistakes, given.values["SEED"]) == ((), "7")


def test_a_file_that_is_not_text_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(b"seed: \xff")
    (mistake,) = gather(VLLM_CONFIG_FILE=str(tmp_path / "config.yaml")).mistakes
    assert "can't be read" in mistake.advice


def test_a_key_that_stands_in_a_file_twice_with_one_value_is_no_mistake(tmp_path: Path) -> None:
    given = gather(VLLM_CONFIG_FILE=written(tmp_path, "max-num-seqs: 1\nmax_num_seqs: 1"))
    assert (given.mistakes, given.values["MAX_NUM_SEQS"]) == ((), "1")


def test_a_date_inside_an_object_of_a_file_is_a_text(tmp_path: Path) -> None:
    given = gather(VLLM_CONFIG_FILE=written(tmp_path, "hf-overrides: {a: 2026-01-02}"))
    assert given.values["HF_OVERRIDES"] == '{"a": "2026-01-02"}'


# Speculative decoding from several variables:


@pytest.mark.parametrize("value", ["true", "True", "TRUE"])
def test_a_boolean_of_speculative_decoding_is_one_in_any_case(value: str) -> None:
    values = gather(SPECULATIVE_ENFORCE_EAGER=value).values
    assert values["SPECULATIVE_CONFIG"] == '{"enforce_eager": true}'


def test_a_mistake_in_a_joined_setting_names_its_variables_and_shows_no_example_of_the_whole() -> (
    None
):
    given = gather(SPECULATIVE_METHOD="ngram", NUM_SPECULATIVE_TOKENS="x")
    mistake = given.as_written(Mistake("SPECULATIVE_CONFIG", "{...}", "no", '{"method": "ngram"}'))
    assert mistake.name == "SPECULATIVE_METHOD, NUM_SPECULATIVE_TOKENS"
    assert mistake.value == '{"method": "ngram", "num_speculative_tokens": "x"}'
    assert mistake.example is None


def test_a_mistake_in_the_whole_shows_no_more_than_it_held() -> None:
    mistake = Mistake("SPECULATIVE_CONFIG", "{...}", "no", '{"method": "ngram"}')
    assert gather(SPECULATIVE_CONFIG='{"key": "sk-canary"}').as_written(mistake) == mistake


# Names:


def test_an_idle_setting_is_not_reported_as_misspelled_too() -> None:
    names = Names(frozenset(), frozenset({"SSL_KEYFILES"}), {"SSL_KEYFILE": "no socket"})
    assert names.without_effect(["SSL_KEYFILE"]) == ["SSL_KEYFILE has no effect: no socket"]


def test_a_misspelled_variable_of_the_sdk_warns() -> None:
    assert Names(frozenset(), frozenset(), {}).without_effect(["RUNPOD_INIT_TIMOUT"]) == [
        "RUNPOD_INIT_TIMOUT is not a setting: did you mean RUNPOD_INIT_TIMEOUT?"
    ]
