"""Which source wins: extra arguments over the environment, a baked model and a config file."""

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from worker import start
from worker.engine.machine import Gpu, Machine
from worker.settings.mistakes import SettingsError
from worker.settings.sources import gather
from worker.start.bootstrap import Bootstrap

GPU = Machine(cpu=False, gpus=(Gpu("card", 80 << 30),))

# Reads settings from a config file's text, a baked model's description, and variables.
Read = Callable[..., start.Start]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    # The real one lies in the root of an image.
    config, baked = tmp_path / "config.yaml", tmp_path / "baked.json"

    def read(file: str = "", image: dict[str, Any] | None = None, **environ: str) -> start.Start:
        config.write_text(file)
        if image is not None:
            baked.write_text(json.dumps(image))
        given = gather({"VLLM_CONFIG_FILE": str(config), **environ}, baked)
        return start.read(Bootstrap.of(given), GPU)

    return read


SOURCES = ("file", "image", "environ", "extra")
COMBINED = [sources for count in range(1, 5) for sources in itertools.combinations(SOURCES, count)]
OF_SETTINGS = [sources for sources in COMBINED if "extra" not in sources]


def given_by(sources: tuple[str, ...], name: str, values: dict[str, Any]) -> dict[str, Any]:
    """Set a setting in some of the sources, to a different value in every one."""
    key = name.lower().replace("_", "-")
    flag = {"model-name": "model", "model-revision": "revision"}.get(key, key)
    ways: dict[str, dict[str, Any]] = {
        "file": {"file": f"{key}: {values['file']}\n"},
        "image": {"image": {name: values["image"]}},
        "environ": {name: str(values["environ"])},
        "extra": {"VLLM_EXTRA_ARGS": f"--{flag} {values['extra']}"},
    }
    return {key: value for source in sources for key, value in ways[source].items()}


NUMBERS = {"file": 11, "image": 12, "environ": 13, "extra": 14}
TEXTS = {"file": "org/file", "image": "org/image", "environ": "org/environ", "extra": "org/extra"}


@pytest.mark.parametrize("sources", COMBINED, ids="-".join)
@pytest.mark.parametrize(
    ("name", "argument", "values"),
    [("SEED", "seed", NUMBERS), ("MODEL_REVISION", "revision", TEXTS)],
)
def test_the_strongest_source_that_sets_an_option_wins(
    read: Read, name: str, argument: str, values: dict[str, Any], sources: tuple[str, ...]
) -> None:
    result = read(**{"MODEL_NAME": "org/model", **given_by(sources, name, values)})
    assert getattr(result.arguments.vllm, argument) == values[sources[-1]]


@pytest.mark.parametrize("sources", COMBINED, ids="-".join)
def test_the_strongest_source_that_names_the_model_wins(
    read: Read, sources: tuple[str, ...]
) -> None:
    # Extra arguments may name another model, but what a worker serves is a setting of its own.
    model = {"MODEL_NAME": "org/model"} if sources == ("extra",) else {}
    result = read(**model, **given_by(sources, "MODEL_NAME", TEXTS))
    assert result.arguments.vllm.model == TEXTS[sources[-1]]


@pytest.mark.parametrize("sources", OF_SETTINGS, ids="-".join)
def test_the_strongest_source_that_sets_one_of_the_workers_own_wins(
    read: Read, sources: tuple[str, ...]
) -> None:
    result = read(**{"MODEL_NAME": "org/model", **given_by(sources, "MAX_CONCURRENCY", NUMBERS)})
    assert result.settings.max_concurrency == NUMBERS[sources[-1]]


@pytest.mark.parametrize("flag", ["--max-concurrency", "--model-name", "--hf-token"])
def test_extra_arguments_set_nothing_that_is_the_workers_own(read: Read, flag: str) -> None:
    with pytest.raises(SettingsError, match=f"VLLM_EXTRA_ARGS = .*: .*{flag}"):
        read(MODEL_NAME="org/model", VLLM_EXTRA_ARGS=f"{flag} 3")


def test_every_source_sets_what_the_stronger_ones_leave_open(read: Read) -> None:
    arguments = read(
        "seed: 1\ndtype: half\nmax-num-seqs: 2\nmax-logprobs: 3\nmax-concurrency: 4\n",
        {"MODEL_NAME": "org/baked", "SEED": 5, "DTYPE": "float32", "MAX_NUM_SEQS": 6},
        SEED="7",
        DTYPE="bfloat16",
        VLLM_EXTRA_ARGS="--seed 8",
    ).arguments.vllm
    assert (arguments.seed, arguments.dtype, arguments.max_num_seqs) == (8, "bfloat16", 6)
    assert (arguments.max_logprobs, arguments.model) == (3, "org/baked")


def test_a_weaker_source_is_overruled_in_any_spelling_of_a_setting(read: Read) -> None:
    result = read(
        "model: org/file\nmin-batch-size: 2\nenable-log-requests: true\nserved-model-name: old\n",
        MODEL_NAME="org/environ",
        DEFAULT_MIN_BATCH_SIZE="3",
        DISABLE_LOG_REQUESTS="1",
        OPENAI_SERVED_MODEL_NAME_OVERRIDE="new",
    )
    assert (result.arguments.vllm.model, result.settings.default_min_batch_size) == (
        "org/environ",
        3,
    )
    assert result.arguments.vllm.enable_log_requests is False
    assert result.arguments.vllm.served_model_name == ["new", "org/environ"]


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_variable_overrules_nothing(read: Read, blank: str) -> None:
    result = read(
        "seed: 7\nmodel-name: org/file\nmax-concurrency: 8\n", MODEL_NAME=blank, SEED=blank
    )
    assert (result.arguments.vllm.seed, result.arguments.vllm.model) == (7, "org/file")
    assert result.settings.max_concurrency == 8


@pytest.mark.parametrize(
    ("line", "argument", "effective"),
    [
        ("enforce-eager: true", "enforce_eager", True),
        ("enforce-eager: on", "enforce_eager", True),
        ("enforce-eager: '1'", "enforce_eager", True),
        ("enforce-eager: 1", "enforce_eager", True),
        ("enable-prefix-caching: false", "enable_prefix_caching", False),
        ("enable-prefix-caching: no", "enable_prefix_caching", False),
        ("seed: 7", "seed", 7),
        ("max-num-seqs: 1_000", "max_num_seqs", 1000),
        ("gpu-memory-utilization: 0.5", "gpu_memory_utilization", 0.5),
        ("max-model-len: 16k", "max_model_len", 16000),
        ("revision: 1234567", "revision", "1234567"),
        ("revision: 2026-01-02", "revision", "2026-01-02"),
        ("revision: v1.0", "revision", "v1.0"),
        ("served-model-name: [a, 'b, c', 5]", "served_model_name", ["a", "b, c", "5", "org/model"]),
        ("served-model-name:\n- a\n- b", "served_model_name", ["a", "b", "org/model"]),
        ("served-model-name: a,b", "served_model_name", ["a", "b", "org/model"]),
        ("cudagraph-capture-sizes: [1, 2, 4]", "cudagraph_capture_sizes", [1, 2, 4]),
        ("limit-mm-per-prompt: {image: 1}", "limit_mm_per_prompt", {"image": 1}),
        ("limit-mm-per-prompt: image=1,video=0", "limit_mm_per_prompt", {"image": 1, "video": 0}),
        ('hf-overrides: {"a": [1, {"b": null}]}', "hf_overrides", {"a": [1, {"b": None}]}),
        (
            "hf-overrides:\n  a:\n    b: true\n    c: 0.5",
            "hf_overrides",
            {"a": {"b": True, "c": 0.5}},
        ),
        ("hf-overrides: '{\"a\": 1}'", "hf_overrides", {"a": 1}),
        (
            "chat-template: |\n  {{ messages }}\n  {{ 1 }}",
            "chat_template",
            "{{ messages }}\n{{ 1 }}",
        ),
        ("speculative-method: ngram\nnum-speculative-tokens: 3", "speculative_config", "ngram"),
    ],
)
def test_yaml_of_any_kind_means_what_the_variable_would(
    read: Read, line: str, argument: str, effective: Any
) -> None:
    result = read(line, MODEL_NAME="org/model")
    value = getattr(result.arguments.vllm, argument)
    assert (value["method"] if effective == "ngram" else value) == effective
    assert value != getattr(read(MODEL_NAME="org/model").arguments.vllm, argument)
    assert result.warnings == ()


@pytest.mark.parametrize("nothing", ["", "# seed: 7", "seed:", "seed: null", "seed: ~", "seed: ''"])
def test_a_file_without_a_value_sets_nothing(read: Read, nothing: str) -> None:
    assert read(nothing, MODEL_NAME="org/model").arguments.vllm.seed == 0


@pytest.mark.parametrize(
    "key", ["max-model-len", "max_model_len", "MAX_MODEL_LEN", "Max-Model_Len", "'max-model-len'"]
)
def test_a_key_may_have_any_spelling(read: Read, key: str) -> None:
    assert read(f"{key}: 4096", MODEL_NAME="org/model").arguments.vllm.max_model_len == 4096


@pytest.mark.parametrize("key", ["model", "model-name", "MODEL_NAME", "model_name"])
def test_a_model_may_be_named_by_a_file(read: Read, key: str) -> None:
    result = read(f"{key}: org/file")
    assert (result.arguments.vllm.model, result.settings.model_name) == ("org/file", "org/file")


def test_a_file_in_json_is_read_like_one_in_yaml(read: Read) -> None:
    held = {"model": "org/json", "seed": 7, "hf-overrides": {"a": None}, "enforce_eager": True}
    arguments = read(json.dumps(held)).arguments.vllm
    assert (arguments.model, arguments.seed, arguments.enforce_eager) == ("org/json", 7, True)
    assert arguments.hf_overrides == {"a": None}


def test_an_embedder_may_be_set_by_a_file(read: Read) -> None:
    result = read("embedding-model-name: org/e\nembedding-seed: 7\n", MODEL_NAME="org/m")
    assert result.embedder is not None
    assert (result.embedder.vllm.model, result.embedder.vllm.seed, result.arguments.vllm.seed) == (
        "org/e",
        7,
        0,
    )


def test_a_token_in_a_file_reaches_the_hubs_library(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    read("hf-token: hf_x", MODEL_NAME="org/model")
    assert os.environ["HF_TOKEN"] == "hf_x"


@pytest.mark.parametrize("line", ["vllm-extra-args: --seed 7", "vllm-config-file: /other.yaml"])
def test_a_key_for_the_environment_only_is_a_mistake_in_a_file(read: Read, line: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(line, MODEL_NAME="org/model")
    assert [mistake.name for mistake in caught.value.mistakes] == [
        line.partition(":")[0].upper().replace("-", "_")
    ]


def test_a_mistake_names_the_file_that_it_is_in(read: Read, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        read("seed: abc\ndtype: float8\n", {"MAX_NUM_SEQS": 0, "SEED": "x"}, DTYPE="float9")
    advice = {mistake.name: mistake.advice for mistake in caught.value.mistakes}
    assert advice["SEED"].startswith(f"(in {tmp_path}/baked.json) ")
    assert advice["MAX_NUM_SEQS"].startswith(f"(in {tmp_path}/baked.json) ")
    assert not advice["DTYPE"].startswith("(in ")
    assert {*advice} == {"SEED", "MAX_NUM_SEQS", "DTYPE", "MODEL_NAME"}


def test_the_environment_is_checked_despite_a_broken_file(read: Read) -> None:
    with pytest.raises(SettingsError) as caught:
        read("seed: [1", MODEL_NAME="org/model", MAX_NUM_SEQS="0")
    assert [mistake.name for mistake in caught.value.mistakes] == [
        "MAX_NUM_SEQS",
        "VLLM_CONFIG_FILE",
    ]
