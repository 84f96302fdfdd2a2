"""Sources of settings, their precedence, and spellings of names."""

import json
from pathlib import Path
from typing import Any

import pytest

from worker.settings import sources
from worker.settings.mistakes import Mistake
from worker.settings.sources import Given
from worker.settings.values import redact_setting, text


def gather(**environ: str) -> Given:
    return sources.gather(environ, Path("/nowhere"))


def written(tmp_path: Path, content: str, name: str = "config.yaml") -> str:
    (tmp_path / name).write_text(content)
    return str(tmp_path / name)


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
    assert redact_setting("SERVE_API_KEY", "x") == "***"
    assert redact_setting("MAX_TOKENS", "x") == "x"


@pytest.mark.parametrize(("text_", "opposite"), [("1", "0"), ("off", "1"), ("True", "0")])
def test_a_setting_may_be_called_by_its_opposite(text_: str, opposite: str) -> None:
    assert gather(ENABLE_LOG_REQUESTS=text_).values == {"DISABLE_LOG_REQUESTS": opposite}


def test_a_setting_that_is_not_a_boolean_has_no_opposite() -> None:
    assert gather(ENABLE_LOG_REQUESTS="maybe").values == {"DISABLE_LOG_REQUESTS": "maybe"}


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
        MODEL_NAME="org/model",
        DTYPE="half",
        EMBEDDING_MODEL_NAME=" org/minilm ",
        EMBEDDING_MAX_MODEL_LEN="512",
        EMBEDDING_SEED=" ",
        EMBEDDING_REVISION="main",
    )
    assert given.options("EMBEDDING_") == {
        "MODEL": "org/minilm",
        "MAX_MODEL_LEN": "512",
        "REVISION": "main",
    }


def test_two_spellings_of_the_second_engine_that_differ_are_a_mistake() -> None:
    (mistake,) = gather(EMBEDDING_MODEL="theirs", EMBEDDING_MODEL_NAME="ours").mistakes
    assert mistake.advice.startswith("EMBEDDING_MODEL=theirs is the same setting")


# Files:


def test_the_environment_wins_over_a_baked_model_and_that_over_the_config_file(
    tmp_path: Path,
) -> None:
    config = written(tmp_path, "model: a\nrevision: a\nseed: 1\nmax-num-seqs: 1")
    baked = Path(written(tmp_path, '{"MODEL_NAME": "b", "MODEL_REVISION": "b", "SEED": 2}', "b"))
    given = sources.gather({"VLLM_CONFIG_FILE": config, "MODEL_REVISION": "c"}, baked)
    assert given.mistakes == ()
    assert (
        given.options().items()
        >= {
            "MODEL": "b",
            "REVISION": "c",
            "SEED": "2",
            "MAX_NUM_SEQS": "1",
        }.items()
    )
    assert {name: file.name for name, file in given.files.items()} == {
        "MODEL_NAME": "b",
        "SEED": "b",
        "MAX_NUM_SEQS": "config.yaml",
    }


def test_keys_of_a_file_may_have_any_spelling(tmp_path: Path) -> None:
    content = "max-model-len: 1\nMAX_NUM_SEQS: 2\nmax_logprobs: 3\nmin-batch-size: 4"
    values = gather(VLLM_CONFIG_FILE=written(tmp_path, content)).values
    assert (
        values.items()
        >= {
            "MAX_MODEL_LEN": "1",
            "MAX_NUM_SEQS": "2",
            "MAX_LOGPROBS": "3",
            "DEFAULT_MIN_BATCH_SIZE": "4",
        }.items()
    )


@pytest.mark.parametrize(
    ("value", "value_read"),
    [
        ("true", "1"),
        ("false", "0"),
        ("1.5", "1.5"),
        ("0x10", "16"),
        ("half", "half"),
        ("[1, 2]", "[1, 2]"),
        ("{image: 1}", '{"image": 1}'),
        ("\n  image: {count: 1}", '{"image": {"count": 1}}'),
        ("null", None),
        ("", None),
    ],
)
def test_values_of_a_file_are_read_as_an_operator_writes_them(
    value: str, value_read: str | None, tmp_path: Path
) -> None:
    given = gather(VLLM_CONFIG_FILE=written(tmp_path, f"setting: {value}"))
    assert given.values.get("SETTING") == value_read


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
    file = written(tmp_path, content)
    (mistake,) = gather(VLLM_CONFIG_FILE=file).mistakes
    assert (mistake.name, mistake.value) == ("VLLM_CONFIG_FILE", file)
    assert reason in mistake.advice
    assert "secret" not in mistake.advice
    assert "it holds lines such as max-model-len: 4096" in mistake.advice


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert gather(VLLM_CONFIG_FILE=written(tmp_path, "# nothing")).mistakes == ()


def test_a_file_that_is_named_must_exist(tmp_path: Path) -> None:
    (mistake,) = gather(VLLM_CONFIG_FILE=str(tmp_path / "no.yaml")).mistakes
    assert mistake.name == "VLLM_CONFIG_FILE"
    assert "No such file" in mistake.advice


def test_a_broken_description_of_a_baked_model_is_named_by_its_file(tmp_path: Path) -> None:
    file = written(tmp_path, "{", "baked.json")
    (mistake,) = sources.gather({}, Path(file)).mistakes
    assert mistake.name == file


def test_a_key_that_stands_in_a_file_twice_with_two_values_is_a_mistake(tmp_path: Path) -> None:
    file = written(tmp_path, "max-num-seqs: 1\nmax_num_seqs: 2")
    assert gather(VLLM_CONFIG_FILE=file).mistakes


@pytest.mark.parametrize("name", ["vllm-extra-args", "vllm-config-file", "log-format"])
def test_a_variable_for_the_environment_only_is_a_mistake_in_a_file(
    name: str, tmp_path: Path
) -> None:
    (mistake,) = gather(VLLM_CONFIG_FILE=written(tmp_path, f"{name}: x")).mistakes
    assert "only the environment can set it" in mistake.advice


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
    (mistake,) = gather(VLLM_EXTRA_ARGS="--a 'b").mistakes
    assert (mistake.name, mistake.advice) == ("VLLM_EXTRA_ARGS", "No closing quotation")


def test_variables_of_speculative_decoding_make_up_its_configuration() -> None:
    values = gather(
        SPECULATIVE_METHOD="ngram",
        SPECULATIVE_MODEL="org/draft",
        NUM_SPECULATIVE_TOKENS="5",
        NGRAM_PROMPT_LOOKUP_MAX="4",
        SPECULATIVE_ENFORCE_EAGER="true",
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


@pytest.mark.parametrize(
    ("value", "written_as"),
    [(None, ""), (True, "1"), (False, "0"), (3, "3"), ([1], "[1]"), ({"a": 1}, '{"a": 1}')],
)
def test_a_value_is_written_as_an_operator_would(value: Any, written_as: str) -> None:
    assert text(value) == written_as
