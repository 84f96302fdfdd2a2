"""Tests of the forms and sources of settings, and of the precedence of the sources."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from settings.conftest import Read, Refuse
from support.models.minilm import MODEL
from support.settings import machine_with_gpus

from worker.engine.options.option import has_third_party_plugins
from worker.engine.start import Start
from worker.settings.mistakes import SettingsError
from worker.settings.sources import gather_settings

ADAPTER = '{"name": "a", "path": "org/a"}'


@pytest.mark.parametrize(
    ("name", "value", "effective"),
    [
        ("DTYPE", "HALF", "half"),
        ("QUANTIZATION", "AWQ", "awq"),
        ("KV_CACHE_DTYPE", "FP8", "fp8"),
        ("LOAD_FORMAT", "SafeTensors", "safetensors"),
        (
            *("DEFAULT_CHAT_TEMPLATE_KWARGS", "enable_thinking=False, budget=3"),
            {"enable_thinking": False, "budget": 3},
        ),
    ],
)
def test_a_value_may_be_spelled_in_other_forms(
    name: str, value: str, effective: Any, read: Read
) -> None:
    arguments = read(**{name: value}).main_arguments
    assert getattr(arguments.vllm_args, name.lower()) == effective
    assert name in arguments.operator_options


@pytest.mark.parametrize(
    "value",
    [
        '{"method": "ngram", "num_speculative_tokens": "4", "prompt_lookup_max": 4}',
        '{"model": "org/draft", "num_speculative_tokens": 4, "draft_tensor_parallel_size": null}',
    ],
)
def test_values_that_vllms_classes_convert_are_accepted(value: str, read: Read) -> None:
    speculative = read(SPECULATIVE_CONFIG=value).main_arguments.vllm_args.speculative_config
    assert int(speculative["num_speculative_tokens"]) == 4


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("a=org/a b=org/b", ["a", "b"]),
        ("a=org/a, b=org/b", ["a", "b"]),
        (f'[{ADAPTER}, "b=org/b"]', ["a", "b"]),
        (ADAPTER, ["a"]),
    ],
)
def test_adapters_are_read_in_all_of_vllms_forms(value: str, names: list[str], read: Read) -> None:
    adapters = read(ENABLE_LORA="1", LORA_MODULES=value).main_arguments.vllm_args.lora_modules
    read_as = [(adapter.name, adapter.path) for adapter in adapters]
    assert read_as == [(name, f"org/{name}") for name in names]


def test_a_parser_may_come_from_a_file(tmp_path: Path, read: Read) -> None:
    (tmp_path / "plugin.py").touch()
    result = read(REASONING_PARSER="mine", REASONING_PARSER_PLUGIN=str(tmp_path / "plugin.py"))
    assert result.main_arguments.vllm_args.reasoning_parser == "mine"


def test_a_vllm_plugin_may_add_values_that_vllm_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Read, refuse: Refuse
) -> None:
    assert not has_third_party_plugins()
    assert "LOAD_FORMAT" in refuse(LOAD_FORMAT="mine").message
    about = tmp_path / "a_plugin-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: a-plugin\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\nmine = a_plugin:register\n")
    monkeypatch.syspath_prepend(tmp_path)
    has_third_party_plugins.cache_clear()
    try:
        assert read(LOAD_FORMAT="mine").main_arguments.vllm_args.load_format == "mine"
    finally:
        monkeypatch.undo()
        has_third_party_plugins.cache_clear()


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ({}, ["org/model"]),
        ({"SERVED_MODEL_NAME": "a, b,,"}, ["a", "b", "org/model"]),
        ({"SERVED_MODEL_NAME": '["a", "b, c", 5]'}, ["a", "b, c", "5", "org/model"]),
        ({"SERVED_MODEL_NAME": "org/model,a,a"}, ["org/model", "a"]),
        ({"VLLM_EXTRA_ARGS": "--served-model-name mine"}, ["mine", "org/model"]),
    ],
    ids=str,
)
def test_a_model_is_also_served_under_its_own_name(
    written: dict[str, str], names: list[str], read: Read
) -> None:
    assert read(**written).main_arguments.vllm_args.served_model_name == names


def test_an_embedder_has_its_own_settings_and_the_pooling_runner(read: Read) -> None:
    settings = {"SEED": "7", "EMBEDDING_SEED": "8"}
    assert len(read(**settings).engines) == 1
    models, embedders = (
        one.vllm_args for one in read(**settings, EMBEDDING_MODEL_NAME="org/e").engines
    )
    assert (models.model, models.seed, models.runner) == ("org/model", 7, "auto")
    assert (embedders.model, embedders.seed, embedders.runner) == ("org/e", 8, "pooling")
    _, own = read(EMBEDDING_MODEL_NAME=str(MODEL), EMBEDDING_RUNNER="auto").engines
    assert own.vllm_args.runner == "auto"


# Precedence of sources: extra arguments, then the environment, a baked model, and a config file.


# Reads settings from the text of a config file, the description of a baked model, and variables.
ReadSources = Callable[..., Start]


@pytest.fixture
def read_sources(tmp_path: Path) -> ReadSources:
    # In an image, the description of the baked model is in the root directory.
    config, baked = tmp_path / "config.yaml", tmp_path / "baked.json"

    def read(file: str = "", image: dict[str, Any] | None = None, **environ: str) -> Start:
        config.write_text(file)
        if image is not None:
            baked.write_text(json.dumps(image))
        raw = gather_settings({"VLLM_CONFIG_FILE": str(config), **environ}, baked)
        start = Start.read(raw)
        start.read_options(machine_with_gpus(1))
        return start

    return read


def test_a_source_sets_the_settings_that_stronger_sources_leave_unset(
    read_sources: ReadSources,
) -> None:
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
    arguments, own = result.main_arguments.vllm_args, result.settings
    assert (arguments.seed, arguments.revision) == (10, "extra")
    assert (arguments.dtype, own.max_concurrency) == ("bfloat16", 9)
    assert (arguments.max_num_seqs, arguments.model, own.default_batch_size) == (6, "org/baked", 7)
    assert (arguments.max_logprobs, own.min_model_len) == (3, 4)


@pytest.mark.parametrize(
    ("image", "environ", "model"),
    [
        (None, {}, "org/file"),
        ({"MODEL_NAME": "org/image"}, {"MODEL_NAME": "org/environ"}, "org/environ"),
        (None, {"VLLM_EXTRA_ARGS": "--model org/extra"}, "org/extra"),
    ],
    ids=["a file", "the environment", "the extra arguments"],
)
def test_any_source_may_name_the_model(
    read_sources: ReadSources, image: dict[str, Any] | None, environ: dict[str, str], model: str
) -> None:
    assert (
        read_sources("model: org/file\n", image, **environ).main_arguments.vllm_args.model == model
    )


def test_a_stronger_source_overrides_a_weaker_one_in_any_spelling(
    read_sources: ReadSources,
) -> None:
    result = read_sources(
        "model: org/file\nmin-batch-size: 2\nenable-log-requests: true\nserved-model-name: old\n",
        MODEL_NAME="org/environ",
        DEFAULT_MIN_BATCH_SIZE="3",
        DISABLE_LOG_REQUESTS="1",
        OPENAI_SERVED_MODEL_NAME_OVERRIDE="new",
    )
    arguments = result.main_arguments.vllm_args
    assert (arguments.model, result.settings.default_min_batch_size) == ("org/environ", 3)
    assert arguments.enable_log_requests is False
    assert arguments.served_model_name == ["new", "org/environ"]


NAMES = ["a", "b", "org/model"]


@pytest.mark.parametrize(
    ("line", "argument", "effective"),
    [
        ("enforce-eager: on", "enforce_eager", True),
        ("enable-prefix-caching: no", "enable_prefix_caching", False),
        ("max-num-seqs: 0x10\nmax_num_seqs: 16", "max_num_seqs", 16),
        ("max-model-len: 16k", "max_model_len", 16000),
        ("Max-Model_Len: 4096", "max_model_len", 4096),
        ("revision: 2026-01-02", "revision", "2026-01-02"),
        ("served-model-name: [a, 'b, c', 5]", "served_model_name", ["a", "b, c", "5", "org/model"]),
        ("served-model-name:\n- a\n- b", "served_model_name", NAMES),
        ("cudagraph-capture-sizes: [1, 2, 4]", "cudagraph_capture_sizes", [1, 2, 4]),
        ("limit-mm-per-prompt: {image: 1}", "limit_mm_per_prompt", {"image": 1}),
        (
            "hf-overrides:\n  a:\n    b: [.5, {c: true}]",
            "hf_overrides",
            {"a": {"b": [0.5, {"c": True}]}},
        ),
        (
            "chat-template: |\n  {{ messages }}\n  {{ 1 }}",
            "chat_template",
            "{{ messages }}\n{{ 1 }}",
        ),
        ('{"seed": 7, "hf-overrides": {"a": null}}', "seed", 7),
        *((nothing, "seed", 0) for nothing in ("# seed: 7", "seed:", "seed: ~", "seed: ''")),
    ],
)  # fmt: skip - one line a case
def test_yaml_of_any_type_has_the_effect_of_the_variable(
    read_sources: ReadSources, line: str, argument: str, effective: Any
) -> None:
    result = read_sources(line, MODEL_NAME="org/model")
    assert getattr(result.main_arguments.vllm_args, argument) == effective
    assert result.warnings == ()


def test_a_mistake_names_its_file(read_sources: ReadSources, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        read_sources("seed: abc\ndtype: float8\n", {"MAX_NUM_SEQS": 0, "SEED": "x"}, DTYPE="float9")
    advice = {mistake.name: mistake.advice for mistake in caught.value.mistakes}
    assert advice["SEED"].startswith(f"(in {tmp_path}/baked.json) ")
    assert advice["MAX_NUM_SEQS"].startswith(f"(in {tmp_path}/baked.json) ")
    assert not advice["DTYPE"].startswith("(in ")
    assert {*advice} == {"SEED", "MAX_NUM_SEQS", "DTYPE", "MODEL_NAME"}
