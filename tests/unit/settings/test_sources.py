"""Sources of settings: the environment, files, and the image."""

from pathlib import Path
from typing import Any

import pytest

from worker.settings import sources
from worker.settings.mistakes import Mistake
from worker.settings.sources import Given
from worker.settings.values import text


def gather(**environ: str) -> Given:
    return sources.gather(environ, Path("/nowhere"))


def written(tmp_path: Path, content: str, name: str = "config.yaml") -> str:
    (tmp_path / name).write_text(content)
    return str(tmp_path / name)


def test_spellings_that_mean_the_same_do_not_differ() -> None:
    assert gather(MIN_BATCH_SIZE="1", DEFAULT_MIN_BATCH_SIZE="1.0").mistakes == ()
    assert gather(ENABLE_LOG_REQUESTS="false", DISABLE_LOG_REQUESTS="true").mistakes == ()
    # What is no boolean has no opposite.
    assert gather(ENABLE_LOG_REQUESTS="maybe").values == {"DISABLE_LOG_REQUESTS": "maybe"}


@pytest.mark.parametrize("blank", ["", "  ", "None"])
def test_a_blank_value_counts_as_unset(blank: str, tmp_path: Path) -> None:
    file = written(tmp_path, "dtype: half")
    given = gather(
        VLLM_CONFIG_FILE=file, REVISION="a", MODEL_REVISION=blank, DTYPE=blank, SEED=" 7 "
    )
    expected = {"REVISION": "a", "DTYPE": "half", "SEED": "7"}
    assert given.main == {"VLLM_CONFIG_FILE": file, **expected}


def test_a_prefix_selects_the_embedders_options_and_is_removed() -> None:
    given = gather(
        **{"MODEL_NAME": "org/model", "DTYPE": "half", "EMBEDDING_MODEL_NAME": " org/minilm "},
        **{"EMBEDDING_MAX_MODEL_LEN": "512", "EMBEDDING_SEED": " ", "EMBEDDING_REVISION": "main"},
    )
    expected = {"MODEL": "org/minilm", "MAX_MODEL_LEN": "512", "REVISION": "main"}
    assert given.embedder == expected


# Files; what is read of them, and other mistakes: tests/settings


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"seed: \xff", "can't be read: "),
        (b"a: !!python/object:os.system x", "could not determine a constructor"),
        (b"max-num-seqs: 1\nmax_num_seqs: 2", "twice, with two values"),
    ],
)
def test_an_invalid_file_is_a_mistake(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    (mistake,) = gather(VLLM_CONFIG_FILE=str(tmp_path / "config.yaml")).mistakes
    assert reason in mistake.advice


def test_space_around_the_name_of_a_file_is_not_part_of_it(tmp_path: Path) -> None:
    given = gather(VLLM_CONFIG_FILE=f" {written(tmp_path, 'seed: 7')} ")
    assert (given.mistakes, given.values["SEED"]) == ((), "7")


def test_a_broken_description_of_a_baked_model_is_named_by_its_file(tmp_path: Path) -> None:
    file = written(tmp_path, "{", "baked.json")
    (mistake,) = sources.gather({}, Path(file)).mistakes
    assert mistake.name == file


@pytest.mark.parametrize(
    "content",
    ["hf-token: sk-canary-1\nHF_TOKEN: sk-canary-2", "vllm-extra-args: --api-key sk-canary"],
)
def test_a_secret_shows_in_no_mistake_of_a_file(content: str, tmp_path: Path) -> None:
    (mistake,) = gather(VLLM_CONFIG_FILE=written(tmp_path, content)).mistakes
    assert "sk-canary" not in str(mistake)


def test_extra_arguments_are_words_as_a_shell_reads_them() -> None:
    assert gather(VLLM_EXTRA_ARGS="--a 'b c' --d=\"e\"").extra == ("--a", "b c", "--d=e")


def test_the_second_engine_has_a_configuration_of_its_own() -> None:
    values = gather(EMBEDDING_SPECULATIVE_MODEL="org/draft").values
    assert values == {"EMBEDDING_SPECULATIVE_CONFIG": '{"model": "org/draft"}'}


def test_a_mistake_in_a_joined_setting_names_its_variables_and_shows_no_example() -> None:
    given = gather(SPECULATIVE_METHOD="ngram", NUM_SPECULATIVE_TOKENS="x")
    mistake = given.as_written(Mistake("SPECULATIVE_CONFIG", "{...}", "no", '{"method": "ngram"}'))
    assert mistake.name == "SPECULATIVE_METHOD, NUM_SPECULATIVE_TOKENS"
    assert mistake.value == '{"method": "ngram", "num_speculative_tokens": "x"}'
    assert mistake.example is None


def test_a_mistake_in_the_whole_shows_no_more_than_it_held() -> None:
    mistake = Mistake("SPECULATIVE_CONFIG", "{...}", "no", '{"method": "ngram"}')
    assert gather(SPECULATIVE_CONFIG='{"key": "sk-canary"}').as_written(mistake) == mistake


@pytest.mark.parametrize(
    ("value", "written_as"),
    [(None, ""), (True, "1"), (False, "0"), (3, "3"), ([1], "[1]"), ({"a": 1}, '{"a": 1}')],
)
def test_a_value_is_written_as_an_operator_would(value: Any, written_as: str) -> None:
    assert text(value) == written_as


# Settings in an image: they apply to the model in it, and to no other

EXTRA = "VLLM_EXTRA_ARGS"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    described = '{"settings": {"MODEL_NAME": "b", "QUANTIZATION": "awq"}, "models": []}'
    return Path(written(tmp_path, described, "image"))


@pytest.mark.parametrize("name", ["MODEL_NAME", "MODEL"])
def test_settings_of_a_baked_model_do_not_apply_to_another(image: Path, name: str) -> None:
    assert sources.gather({name: "c"}, image).main == {"MODEL": "c"}


@pytest.mark.parametrize("extra", ["--model c", "--model=c", "--dtype half --model c"])
def test_settings_of_a_baked_model_do_not_apply_to_extra_arguments(image: Path, extra: str) -> None:
    given = sources.gather({EXTRA: extra}, image)
    assert "QUANTIZATION" not in given.main
    # The settings want a name, whatever the arguments say.
    assert given.values["MODEL_NAME"] == "b"
    assert "QUANTIZATION" not in sources.gather({EXTRA: extra, "MODEL_NAME": "b"}, image).main


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"MODEL": " b "},
        {"MODEL_NAME": " "},
        {"MODEL_NAME": "None", "MODEL": "b"},
        {EXTRA: "--model b"},
        {EXTRA: "--model-impl transformers"},
    ],
    ids=str,
)
def test_a_baked_model_is_used_if_no_other_is_named(image: Path, environ: dict[str, str]) -> None:
    options = sources.gather(environ, image).main
    assert (options["MODEL"], options["QUANTIZATION"]) == ("b", "awq")


def test_words_of_a_command_line_are_read_by_the_names_of_settings() -> None:
    words = ["--model", "a", "--max_model_len=5", "--enforce-eager", "--json.key", "1", "-sc", "{}"]
    assert sources.options_of(words) == {
        "MODEL": "a",
        "MAX_MODEL_LEN": "5",
        "ENFORCE_EAGER": "--json.key",
        "JSON": "1",
        "SC": "{}",
    }
    assert sources.options_of([]) == {}
