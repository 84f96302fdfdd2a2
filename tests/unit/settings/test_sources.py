"""Sources of settings: their precedence, the spellings of names, and files."""

import json
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


def read(tmp_path: Path, content: str) -> Given:
    """Return what is set by a file alone."""
    return gather(VLLM_CONFIG_FILE=written(tmp_path, content))


# Spellings:


@pytest.mark.parametrize(
    ("ours", "other"),
    [
        ("MODEL_NAME", "MODEL"),
        ("MODEL_REVISION", "REVISION"),
        ("TOKENIZER_NAME", "TOKENIZER"),
        ("CUSTOM_CHAT_TEMPLATE", "CHAT_TEMPLATE"),
        ("OPENAI_RESPONSE_ROLE", "RESPONSE_ROLE"),
        ("OPENAI_SERVED_MODEL_NAME_OVERRIDE", "SERVED_MODEL_NAME"),
    ],
)
def test_the_workers_name_and_vllms_name_are_one_setting(ours: str, other: str) -> None:
    for name in (ours, other):
        assert gather(**{name: "x"}).options() == {other: "x"}
    assert gather(**{ours: "x", other: "x"}).options() == {other: "x"}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("DEFAULT_MIN_BATCH_SIZE", "MIN_BATCH_SIZE"),
        ("DEFAULT_BATCH_SIZE_GROWTH_FACTOR", "BATCH_SIZE_GROWTH_FACTOR"),
        ("DISABLE_LOG_REQUESTS", "DISABLE_LOGGING_REQUEST"),
        ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
        ("ATTENTION_BACKEND", "VLLM_ATTENTION_BACKEND"),
    ],
)
def test_a_setting_is_known_by_its_former_names(name: str, other: str) -> None:
    assert gather(**{other: "2"}).values == {name: "2"}
    (mistake,) = gather(**{other: "2", name: "3"}).mistakes
    assert {name, other} == {mistake.name, mistake.advice.partition("=")[0]}
    assert "is the same setting: set one of them" in mistake.advice


def test_spellings_that_mean_the_same_do_not_differ() -> None:
    assert gather(MIN_BATCH_SIZE="1", DEFAULT_MIN_BATCH_SIZE="1.0").mistakes == ()
    assert gather(ENABLE_LOG_REQUESTS="false", DISABLE_LOG_REQUESTS="true").mistakes == ()


def test_two_spellings_that_differ_show_no_secret() -> None:
    (mistake,) = gather(HF_TOKEN="hf_one", HUGGING_FACE_HUB_TOKEN="hf_two").mistakes
    assert str(mistake) == (
        "HUGGING_FACE_HUB_TOKEN = '***': HF_TOKEN=*** is the same setting: set one of them"
    )


@pytest.mark.parametrize(
    ("value", "opposite"), [("1", "0"), ("off", "1"), ("True", "0"), ("maybe", "maybe")]
)
def test_a_setting_may_be_called_by_its_opposite(value: str, opposite: str) -> None:
    assert gather(ENABLE_LOG_REQUESTS=value).values == {"DISABLE_LOG_REQUESTS": opposite}


@pytest.mark.parametrize(("value", "logged"), [("0", True), ("no", True), ("1", False)])
def test_vllm_logs_requests_where_that_is_not_disabled(value: str, logged: bool) -> None:
    given = gather(DISABLE_LOG_REQUESTS=value).options()
    assert (given.get("ENABLE_LOG_REQUESTS") == "1") is logged


# Blank values, and the second engine:


@pytest.mark.parametrize("blank", ["", "  ", "None"])
def test_a_blank_value_counts_as_unset(blank: str) -> None:
    given = gather(REVISION="abc", MODEL_REVISION=blank, DTYPE=blank, SEED=" 7 ")
    assert given.options() == {"REVISION": "abc", "SEED": "7"}


def test_a_prefix_selects_the_embedders_options_and_is_removed() -> None:
    given = gather(
        **{"MODEL_NAME": "org/model", "DTYPE": "half", "EMBEDDING_MODEL_NAME": " org/minilm "},
        **{"EMBEDDING_MAX_MODEL_LEN": "512", "EMBEDDING_SEED": " ", "EMBEDDING_REVISION": "main"},
    )
    expected = {"MODEL": "org/minilm", "MAX_MODEL_LEN": "512", "REVISION": "main"}
    assert given.options("EMBEDDING_") == expected


def test_two_spellings_of_the_second_engine_that_differ_are_a_mistake() -> None:
    (mistake,) = gather(EMBEDDING_MODEL="theirs", EMBEDDING_MODEL_NAME="ours").mistakes
    assert mistake.advice.startswith("EMBEDDING_MODEL=theirs is the same setting")


# Files:


def test_the_environment_wins_over_a_baked_model_and_that_over_a_file(tmp_path: Path) -> None:
    config = written(tmp_path, "model: a\nrevision: a\nseed: 1\nmax-num-seqs: 1")
    baked = Path(written(tmp_path, '{"MODEL_NAME": "b", "MODEL_REVISION": "b", "SEED": 2}', "b"))
    given = sources.gather({"VLLM_CONFIG_FILE": config, "MODEL_REVISION": "c"}, baked)
    expected = {"MODEL": "b", "REVISION": "c", "SEED": "2", "MAX_NUM_SEQS": "1"}
    assert given.mistakes == ()
    assert given.options().items() >= expected.items()
    files = {"MODEL_NAME": "b", "SEED": "b", "MAX_NUM_SEQS": "config.yaml"}
    assert {name: file.name for name, file in given.files.items()} == files


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        # Keys in any spelling.
        ("max-model-len: 1", {"MAX_MODEL_LEN": "1"}),
        ("MAX_NUM_SEQS: 2", {"MAX_NUM_SEQS": "2"}),
        ("max_logprobs: 3", {"MAX_LOGPROBS": "3"}),
        ("min-batch-size: 4", {"DEFAULT_MIN_BATCH_SIZE": "4"}),
        ("max-num-seqs: 1\nmax_num_seqs: 1", {"MAX_NUM_SEQS": "1"}),
        # Values as an operator writes them.
        ("a: true", {"A": "1"}),
        ("a: false", {"A": "0"}),
        ("a: 1.5", {"A": "1.5"}),
        ("a: 0x10", {"A": "16"}),
        ("a: half", {"A": "half"}),
        ("a: [1, 2]", {"A": "[1, 2]"}),
        ("a: {image: 1}", {"A": '{"image": 1}'}),
        ("a: {b: 2026-01-02}", {"A": '{"b": "2026-01-02"}'}),
        ("a:\n  image: {count: 1}", {"A": '{"image": {"count": 1}}'}),
        ("a: null", {}),
        ("a:", {}),
        ("# nothing", {}),
    ],
)
def test_a_file_is_read_as_written(content: str, expected: dict[str, str], tmp_path: Path) -> None:
    given, file = read(tmp_path, content), {"VLLM_CONFIG_FILE": str(tmp_path / "config.yaml")}
    assert (given.mistakes, given.values) == ((), expected | file)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("a: {key: secret", "line 1, column 16"),
        ("- a", "holds no settings"),
        ("text", "holds no settings"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
    ],
)
def test_an_invalid_file_is_a_mistake(content: str, reason: str, tmp_path: Path) -> None:
    (mistake,) = read(tmp_path, content).mistakes
    assert (mistake.name, mistake.value) == ("VLLM_CONFIG_FILE", str(tmp_path / "config.yaml"))
    assert reason in mistake.advice
    assert "secret" not in mistake.advice
    assert "it holds lines such as max-model-len: 4096" in mistake.advice


def test_a_file_that_is_named_must_be_there_and_be_text(tmp_path: Path) -> None:
    (mistake,) = gather(VLLM_CONFIG_FILE=str(tmp_path / "no.yaml")).mistakes
    assert mistake.name == "VLLM_CONFIG_FILE"
    assert "No such file" in mistake.advice
    (tmp_path / "config.yaml").write_bytes(b"seed: \xff")
    (mistake,) = gather(VLLM_CONFIG_FILE=str(tmp_path / "config.yaml")).mistakes
    assert "can't be read" in mistake.advice


def test_space_around_the_name_of_a_file_is_not_part_of_it(tmp_path: Path) -> None:
    given = gather(VLLM_CONFIG_FILE=f" {written(tmp_path, 'seed: 7')} ")
    assert (given.mistakes, given.values["SEED"]) == ((), "7")


def test_a_broken_description_of_a_baked_model_is_named_by_its_file(tmp_path: Path) -> None:
    file = written(tmp_path, "{", "baked.json")
    (mistake,) = sources.gather({}, Path(file)).mistakes
    assert mistake.name == file


def test_a_key_that_stands_in_a_file_twice_with_two_values_is_a_mistake(tmp_path: Path) -> None:
    assert len(read(tmp_path, "max-num-seqs: 1\nmax_num_seqs: 2").mistakes) == 1


@pytest.mark.parametrize("name", ["vllm-extra-args", "vllm-config-file", "log-format"])
def test_a_variable_of_the_environment_is_a_mistake_in_a_file(name: str, tmp_path: Path) -> None:
    (mistake,) = read(tmp_path, f"{name}: x").mistakes
    assert "only the environment can set it" in mistake.advice


@pytest.mark.parametrize(
    "content",
    ["hf-token: sk-canary-1\nHF_TOKEN: sk-canary-2", "vllm-extra-args: --api-key sk-canary"],
)
def test_a_secret_shows_in_no_mistake_of_a_file(content: str, tmp_path: Path) -> None:
    (mistake,) = read(tmp_path, content).mistakes
    assert "sk-canary" not in str(mistake)


# Messages:


def test_a_mistake_has_the_operators_spelling_and_its_file(tmp_path: Path) -> None:
    given = gather(VLLM_CONFIG_FILE=written(tmp_path, "seed: x"), REVISION="a", MIN_BATCH_SIZE="y")
    assert given.as_written(Mistake("REVISION", "a", "no")).name == "REVISION"
    assert given.as_written(Mistake("DEFAULT_MIN_BATCH_SIZE", "y", "no")).name == "MIN_BATCH_SIZE"
    mistake = given.as_written(Mistake("SEED", "x", "a whole number", "0"))
    assert str(mistake) == (
        f"SEED = 'x': (in {tmp_path}/config.yaml) a whole number, for example SEED=0"
    )
    assert given.as_written(Mistake("MODEL", None, "no")).name == "MODEL_NAME"


# Extra arguments, and speculative decoding:


def test_extra_arguments_are_words_as_a_shell_reads_them() -> None:
    given = gather(VLLM_EXTRA_ARGS="--a 'b c' --d=\"e\"")
    assert given.extra == ("--a", "b c", "--d=e")
    (mistake,) = gather(VLLM_EXTRA_ARGS="--api-key sk-canary --seed '5").mistakes
    assert (mistake.name, mistake.advice) == ("VLLM_EXTRA_ARGS", "No closing quotation")
    assert "sk-canary" not in str(mistake)


@pytest.mark.parametrize("value", ["true", "True", "TRUE"])
def test_variables_of_speculative_decoding_make_up_its_configuration(value: str) -> None:
    values = gather(
        SPECULATIVE_METHOD="ngram",
        SPECULATIVE_MODEL="org/draft",
        NUM_SPECULATIVE_TOKENS="5",
        NGRAM_PROMPT_LOOKUP_MAX="4",
        SPECULATIVE_ENFORCE_EAGER=value,
    ).values
    assert values.keys() == {"SPECULATIVE_CONFIG"}
    assert json.loads(values["SPECULATIVE_CONFIG"]) == {
        "method": "ngram",
        "model": "org/draft",
        "num_speculative_tokens": 5,
        "prompt_lookup_max": 4,
        "enforce_eager": True,
    }


def test_the_second_engine_has_a_configuration_of_its_own() -> None:
    values = gather(EMBEDDING_SPECULATIVE_MODEL="org/draft").values
    assert values == {"EMBEDDING_SPECULATIVE_CONFIG": '{"model": "org/draft"}'}


def test_a_part_of_speculative_decoding_next_to_the_whole_is_a_mistake() -> None:
    (mistake,) = gather(SPECULATIVE_CONFIG="{}", SPECULATIVE_MODEL="x").mistakes
    assert str(mistake) == (
        "SPECULATIVE_MODEL = 'x': SPECULATIVE_CONFIG is given, too: set it in there"
    )


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
