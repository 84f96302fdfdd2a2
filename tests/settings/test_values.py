"""Values of settings that are accepted, and what becomes of them in vLLM's arguments."""

from pathlib import Path
from typing import Any

import pytest
from settings.conftest import Read, Refuse
from support.models.minilm import MODEL

from worker.engine.options.declared import plugged

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
def test_a_value_may_have_any_of_the_forms_that_mean_it(
    name: str, value: str, effective: Any, read: Read
) -> None:
    arguments = read(**{name: value}).arguments
    assert getattr(arguments.vllm, name.lower()) == effective
    assert name in arguments.given


@pytest.mark.parametrize(
    "value",
    [
        '{"method": "ngram", "num_speculative_tokens": "4", "prompt_lookup_max": 4}',
        '{"model": "org/draft", "num_speculative_tokens": 4, "draft_tensor_parallel_size": null}',
    ],
)
def test_values_that_vllms_classes_convert_are_accepted(value: str, read: Read) -> None:
    speculative = read(SPECULATIVE_CONFIG=value).arguments.vllm.speculative_config
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
def test_adapters_are_read_in_every_form_that_vllm_knows(
    value: str, names: list[str], read: Read
) -> None:
    adapters = read(ENABLE_LORA="1", LORA_MODULES=value).arguments.vllm.lora_modules
    read_as = [(adapter.name, adapter.path) for adapter in adapters]
    assert read_as == [(name, f"org/{name}") for name in names]


def test_a_parser_may_come_from_a_file(tmp_path: Path, read: Read) -> None:
    (tmp_path / "plugin.py").touch()
    result = read(REASONING_PARSER="mine", REASONING_PARSER_PLUGIN=str(tmp_path / "plugin.py"))
    assert result.arguments.vllm.reasoning_parser == "mine"


def test_a_vllm_plugin_may_bring_names_that_vllm_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Read, refuse: Refuse
) -> None:
    assert not plugged()
    assert "LOAD_FORMAT" in refuse(LOAD_FORMAT="mine").message
    about = tmp_path / "a_plugin-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: a-plugin\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\nmine = a_plugin:register\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugged.cache_clear()
    try:
        assert read(LOAD_FORMAT="mine").arguments.vllm.load_format == "mine"
    finally:
        monkeypatch.undo()
        plugged.cache_clear()


# Served names:


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
def test_a_model_is_served_by_its_own_name_behind_the_operators(
    written: dict[str, str], names: list[str], read: Read
) -> None:
    assert read(**written).arguments.vllm.served_model_name == names


# The embedder:


def test_an_embedder_has_settings_of_its_own_and_the_pooling_runner(read: Read) -> None:
    settings = {"SEED": "7", "EMBEDDING_SEED": "8"}
    assert read(**settings).embedder is None
    models, embedders = (one.vllm for one in read(**settings, EMBEDDING_MODEL_NAME="org/e").engines)
    assert (models.model, models.seed, models.runner) == ("org/model", 7, "auto")
    assert (embedders.model, embedders.seed, embedders.runner) == ("org/e", 8, "pooling")


def test_an_operator_may_set_the_embedders_runner(read: Read) -> None:
    embedder = read(EMBEDDING_MODEL_NAME=str(MODEL), EMBEDDING_RUNNER="auto").embedder
    assert embedder is not None
    assert embedder.vllm.runner == "auto"
