"""Sources of settings: the environment, files, and the image."""

from pathlib import Path

import pytest

from worker.settings import sources
from worker.settings.mistakes import Mistake
from worker.settings.sources import RawSettings


def gather(**environ: str) -> RawSettings:
    return sources.gather_settings(environ, Path("/nowhere"))


def write_file(tmp_path: Path, content: str, name: str = "config.yaml") -> str:
    (tmp_path / name).write_text(content)
    return str(tmp_path / name)


def test_different_spellings_of_one_value_are_no_mistake() -> None:
    assert gather(MIN_BATCH_SIZE="1", DEFAULT_MIN_BATCH_SIZE="1.0").mistakes == ()
    assert gather(ENABLE_LOG_REQUESTS="false", DISABLE_LOG_REQUESTS="true").mistakes == ()
    # A value that isn't a boolean has no opposite.
    assert gather(ENABLE_LOG_REQUESTS="maybe").values == {"DISABLE_LOG_REQUESTS": "maybe"}


@pytest.mark.parametrize("blank", ["", "  ", "None"])
def test_a_blank_value_counts_as_unset(blank: str, tmp_path: Path) -> None:
    file = write_file(tmp_path, "dtype: half")
    raw = gather(VLLM_CONFIG_FILE=file, REVISION="a", MODEL_REVISION=blank, DTYPE=blank, SEED=" 7 ")
    expected = {"REVISION": "a", "DTYPE": "half", "SEED": "7"}
    assert raw.main_options == {"VLLM_CONFIG_FILE": file, **expected}


def test_a_prefix_selects_the_embedders_options_and_is_removed() -> None:
    raw = gather(
        **{"MODEL_NAME": "org/model", "DTYPE": "half", "EMBEDDING_MODEL_NAME": " org/minilm "},
        **{"EMBEDDING_MAX_MODEL_LEN": "512", "EMBEDDING_SEED": " ", "EMBEDDING_REVISION": "main"},
    )
    expected = {"MODEL": "org/minilm", "MAX_MODEL_LEN": "512", "REVISION": "main"}
    assert raw.embedder_options == expected


# Configuration files; tests/settings tests their content and further mistakes


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"seed: \xff", "can't be read: "),
        (b"a: !!python/object:os.system x", "could not determine a constructor"),
        (b"max-num-seqs: 1\nmax_num_seqs: 2", "twice, with different values"),
    ],
)
def test_an_invalid_file_is_a_mistake(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    (mistake,) = gather(VLLM_CONFIG_FILE=str(tmp_path / "config.yaml")).mistakes
    assert reason in mistake.advice


def test_whitespace_around_a_file_name_is_ignored(tmp_path: Path) -> None:
    raw = gather(VLLM_CONFIG_FILE=f" {write_file(tmp_path, 'seed: 7')} ")
    assert (raw.mistakes, raw.values["SEED"]) == ((), "7")


def test_a_mistake_in_the_description_of_a_baked_model_names_its_file(tmp_path: Path) -> None:
    file = write_file(tmp_path, "{", "baked.json")
    (mistake,) = sources.gather_settings({}, Path(file)).mistakes
    assert mistake.name == file


@pytest.mark.parametrize(
    "content",
    ["hf-token: sk-canary-1\nHF_TOKEN: sk-canary-2", "vllm-extra-args: --api-key sk-canary"],
)
def test_a_mistake_in_a_file_does_not_reveal_a_secret(content: str, tmp_path: Path) -> None:
    (mistake,) = gather(VLLM_CONFIG_FILE=write_file(tmp_path, content)).mistakes
    assert "sk-canary" not in str(mistake)


def test_the_embedder_has_its_own_speculative_configuration() -> None:
    values = gather(EMBEDDING_SPECULATIVE_MODEL="org/draft").values
    assert values == {"EMBEDDING_SPECULATIVE_CONFIG": '{"model": "org/draft"}'}


def test_a_mistake_in_a_combined_setting_names_its_variables_without_an_example() -> None:
    raw = gather(SPECULATIVE_METHOD="ngram", NUM_SPECULATIVE_TOKENS="x")
    mistake = raw.restore_spelling(
        Mistake("SPECULATIVE_CONFIG", "{...}", "no", '{"method": "ngram"}')
    )
    assert mistake.name == "SPECULATIVE_METHOD, NUM_SPECULATIVE_TOKENS"
    assert mistake.value == '{"method": "ngram", "num_speculative_tokens": "x"}'
    assert mistake.example is None


def test_a_mistake_in_a_setting_of_one_variable_is_not_changed() -> None:
    mistake = Mistake("SPECULATIVE_CONFIG", "{...}", "no", '{"method": "ngram"}')
    assert gather(SPECULATIVE_CONFIG='{"key": "sk-canary"}').restore_spelling(mistake) == mistake


# Settings in an image, which apply only to the model in the image

EXTRA = "VLLM_EXTRA_ARGS"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    description = '{"settings": {"MODEL_NAME": "b", "QUANTIZATION": "awq"}, "models": []}'
    return Path(write_file(tmp_path, description, "image"))


@pytest.mark.parametrize(
    ("environ", "model"),
    [
        ({"MODEL_NAME": "c"}, "c"),
        ({"MODEL": "c"}, "c"),
        # MODEL_NAME is still set, although the arguments name another model.
        ({EXTRA: "--model c"}, "b"),
        ({EXTRA: "--dtype half --model=c"}, "b"),
        ({EXTRA: "--model c", "MODEL_NAME": "b"}, "b"),
    ],
    ids=str,
)
def test_settings_of_a_baked_model_do_not_apply_to_another(
    image: Path, environ: dict[str, str], model: str
) -> None:
    options = sources.gather_settings(environ, image).main_options
    assert {name: options.get(name) for name in ("MODEL", "QUANTIZATION")} == {
        "MODEL": model,
        "QUANTIZATION": None,
    }


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
    options = sources.gather_settings(environ, image).main_options
    assert (options["MODEL"], options["QUANTIZATION"]) == ("b", "awq")


def test_options_of_a_command_line_are_parsed_by_setting_name() -> None:
    words = ["--model", "a", "--max_model_len=5", "--enforce-eager", "--json.key", "1", "-sc", "{}"]
    assert sources.guess_options(words) == {
        "MODEL": "a",
        "MAX_MODEL_LEN": "5",
        "ENFORCE_EAGER": "--json.key",
        "JSON": "1",
        "SC": "{}",
    }
    assert sources.guess_options([]) == {}
