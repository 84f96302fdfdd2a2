"""Which source wins: extra arguments over the environment, a baked model and a config file."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.settings import gpus

from worker import start
from worker.settings.mistakes import SettingsError
from worker.settings.sources import gather
from worker.start.bootstrap import Bootstrap

# Reads settings from a config file's text, a baked model's description, and variables.
ReadSources = Callable[..., start.Start]


@pytest.fixture
def read_sources(tmp_path: Path) -> ReadSources:
    # The real one lies in the root of an image.
    config, baked = tmp_path / "config.yaml", tmp_path / "baked.json"

    def read(file: str = "", image: dict[str, Any] | None = None, **environ: str) -> start.Start:
        config.write_text(file)
        if image is not None:
            baked.write_text(json.dumps(image))
        given = gather({"VLLM_CONFIG_FILE": str(config), **environ}, baked)
        return start.read(Bootstrap.of(given), gpus(1))

    return read


def test_every_source_sets_what_the_stronger_ones_leave_open(read_sources: ReadSources) -> None:
    result = read_sources(
        "model-name: org/file\nrevision: file\nseed: 1\ndtype: half\nmax-num-seqs: 2\n"
        "max-logprobs: 3\nmax-concurrency: 4\ndefault-batch-size: 4\nmin-model-len: 4\n",
        {"MODEL_NAME": "org/baked", "MODEL_REVISION": "baked", "SEED": 5, "DTYPE": "float32"}
        | {"MAX_NUM_SEQS": 6, "MAX_CONCURRENCY": 7, "DEFAULT_BATCH_SIZE": 7},
        MODEL_REVISION="environ",
        SEED="8",
        DTYPE="bfloat16",
        MAX_CONCURRENCY="9",
        VLLM_EXTRA_ARGS="--seed 10 --revision extra",
    )
    arguments, own = result.arguments.vllm, result.settings
    assert (arguments.seed, arguments.revision) == (10, "extra")
    assert (arguments.dtype, own.max_concurrency) == ("bfloat16", 9)
    assert (arguments.max_num_seqs, arguments.model, own.default_batch_size) == (6, "org/baked", 7)
    assert (arguments.max_logprobs, own.min_model_len) == (3, 4)


@pytest.mark.parametrize(
    ("image", "environ", "model"),
    [
        (None, {}, "org/file"),
        ({"MODEL_NAME": "org/image"}, {"MODEL_NAME": "org/environ"}, "org/environ"),
        # What a worker serves is a setting of its own.
        (None, {"VLLM_EXTRA_ARGS": "--model org/extra"}, "org/extra"),
    ],
    ids=["a file", "the environment", "the extra arguments"],
)
def test_a_model_may_be_named_by_any_source(
    read_sources: ReadSources, image: dict[str, Any] | None, environ: dict[str, str], model: str
) -> None:
    assert read_sources("model: org/file\n", image, **environ).arguments.vllm.model == model


def test_a_weaker_source_is_overruled_in_any_spelling_of_a_setting(
    read_sources: ReadSources,
) -> None:
    result = read_sources(
        "model: org/file\nmin-batch-size: 2\nenable-log-requests: true\nserved-model-name: old\n",
        MODEL_NAME="org/environ",
        DEFAULT_MIN_BATCH_SIZE="3",
        DISABLE_LOG_REQUESTS="1",
        OPENAI_SERVED_MODEL_NAME_OVERRIDE="new",
    )
    arguments = result.arguments.vllm
    assert (arguments.model, result.settings.default_min_batch_size) == ("org/environ", 3)
    assert arguments.enable_log_requests is False
    assert arguments.served_model_name == ["new", "org/environ"]


NAMES = ["a", "b", "org/model"]


@pytest.mark.parametrize(
    ("line", "argument", "effective"),
    [
        ("enforce-eager: on", "enforce_eager", True),
        ("enforce-eager: 1", "enforce_eager", True),
        ("enable-prefix-caching: no", "enable_prefix_caching", False),
        ("max-num-seqs: 1_000", "max_num_seqs", 1000),
        ("max-num-seqs: 0x10\nmax_num_seqs: 16", "max_num_seqs", 16),
        ("gpu-memory-utilization: 0.5", "gpu_memory_utilization", 0.5),
        ("max-model-len: 16k", "max_model_len", 16000),
        ("Max-Model_Len: 4096", "max_model_len", 4096),
        ("revision: 1234567", "revision", "1234567"),
        ("revision: 2026-01-02", "revision", "2026-01-02"),
        ("served-model-name: [a, 'b, c', 5]", "served_model_name", ["a", "b, c", "5", "org/model"]),
        ("served-model-name:\n- a\n- b", "served_model_name", NAMES),
        ("served-model-name: a,b", "served_model_name", NAMES),
        ("cudagraph-capture-sizes: [1, 2, 4]", "cudagraph_capture_sizes", [1, 2, 4]),
        ("limit-mm-per-prompt: {image: 1}", "limit_mm_per_prompt", {"image": 1}),
        (
            "hf-overrides:\n  a:\n    b: [.5, {c: true}]",
            "hf_overrides",
            {"a": {"b": [0.5, {"c": True}]}},
        ),
        ("hf-overrides: '{\"a\": null}'", "hf_overrides", {"a": None}),
        (
            "chat-template: |\n  {{ messages }}\n  {{ 1 }}",
            "chat_template",
            "{{ messages }}\n{{ 1 }}",
        ),
        ("speculative-method: ngram", "speculative_config", {"method": "ngram"}),
        ('{"seed": 7, "hf-overrides": {"a": null}}', "seed", 7),
        *((nothing, "seed", 0) for nothing in ("# seed: 7", "seed:", "seed: ~", "seed: ''")),
    ],
)  # fmt: skip - one line a case
def test_yaml_of_any_kind_means_what_the_variable_would(
    read_sources: ReadSources, line: str, argument: str, effective: Any
) -> None:
    result = read_sources(line, MODEL_NAME="org/model")
    assert getattr(result.arguments.vllm, argument) == effective
    assert result.warnings == ()


def test_a_token_in_a_file_reaches_the_hubs_library(read_sources: ReadSources) -> None:
    read_sources("hf-token: hf_x", MODEL_NAME="org/model")
    assert os.environ["HF_TOKEN"] == "hf_x"


def test_a_mistake_names_the_file_that_it_is_in(read_sources: ReadSources, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        read_sources("seed: abc\ndtype: float8\n", {"MAX_NUM_SEQS": 0, "SEED": "x"}, DTYPE="float9")
    advice = {mistake.name: mistake.advice for mistake in caught.value.mistakes}
    assert advice["SEED"].startswith(f"(in {tmp_path}/baked.json) ")
    assert advice["MAX_NUM_SEQS"].startswith(f"(in {tmp_path}/baked.json) ")
    assert not advice["DTYPE"].startswith("(in ")
    assert {*advice} == {"SEED", "MAX_NUM_SEQS", "DTYPE", "MODEL_NAME"}


def test_the_environment_is_checked_despite_a_broken_file(read_sources: ReadSources) -> None:
    with pytest.raises(SettingsError) as caught:
        read_sources("seed: [1", MODEL_NAME="org/model", MAX_NUM_SEQS="0")
    names = [mistake.name for mistake in caught.value.mistakes]
    assert names == ["MAX_NUM_SEQS", "VLLM_CONFIG_FILE"]
