"""What the settings want before vLLM is imported is what vLLM's arguments then want."""

import json
from pathlib import Path

import pytest
from support.settings import read_settings

from worker.settings.sources import gather
from worker.start.needs import wanted_by_arguments, wanted_by_settings
from worker.start.repositories import with_directories
from worker.store import Found, Origin, Wanted

NOTHING = Path("/no such file")
ADAPTERS = [{"name": "a", "path": "org/a"}, {"name": "b", "path": "org/b", "base_model_name": "x"}]
DRAFT = {"model": "org/draft", "revision": "v3", "num_speculative_tokens": 2}

CASES: list[dict[str, str]] = [
    {},
    {"MODEL_REVISION": "v1", "LOAD_FORMAT": "safetensors"},
    {"TOKENIZER_NAME": "org/tokenizer"},
    {"TOKENIZER_NAME": "org/tokenizer", "MODEL_REVISION": "v1"},
    {"TOKENIZER_NAME": "org/tokenizer", "TOKENIZER_REVISION": "v2", "MODEL_REVISION": "v1"},
    {"TOKENIZER_NAME": "org/model"},
    {"TOKENIZER_REVISION": "v2"},
    {"TOKENIZER_NAME": "org/model", "TOKENIZER_REVISION": "v1", "MODEL_REVISION": "v1"},
    {"TOKENIZER_REVISION": "v2", "SKIP_TOKENIZER_INIT": "1"},
    {"DOWNLOAD_DIR": "/downloads"},
    {"TRUST_REMOTE_CODE": "true"},
    {"TRUST_REMOTE_CODE": "0"},
    {"ENABLE_LORA": "1", "LORA_MODULES": json.dumps(ADAPTERS)},
    {"ENABLE_LORA": "1", "LORA_MODULES": json.dumps(ADAPTERS[0])},
    {"ENABLE_LORA": "1", "LORA_MODULES": "a=org/a b=org/b"},
    {"ENABLE_LORA": "1", "LORA_MODULES": "a=/adapters/a"},
    {"SPECULATIVE_CONFIG": json.dumps(DRAFT), "MODEL_REVISION": "v1"},
    {"SPECULATIVE_CONFIG": '{"method": "ngram", "num_speculative_tokens": 2}'},
    {"SPECULATIVE_MODEL": "org/draft", "NUM_SPECULATIVE_TOKENS": "2"},
    {"SPECULATIVE_MODEL": "[ngram]", "NUM_SPECULATIVE_TOKENS": "2"},
    {"VLLM_EXTRA_ARGS": "--model-impl transformers"},
    {"EMBEDDING_MODEL_NAME": "org/embedder", "EMBEDDING_MODEL_REVISION": "v4"},
    {"EMBEDDING_MODEL_NAME": "org/embedder", "EMBEDDING_TOKENIZER_NAME": "org/tokenizer"},
    {"MODEL_REVISION": "v1", "TRUST_REMOTE_CODE": "1", "EMBEDDING_MODEL_NAME": "org/model"},
]


def both(environ: dict[str, str]) -> tuple[list[Wanted], list[Wanted]]:
    """Return what is wanted by the settings, and by vLLM's arguments."""
    told = read_settings({"MODEL_NAME": "org/model", **environ})
    of_vllm = [wanted for engine in told.engines for wanted in wanted_by_arguments(engine)]
    return wanted_by_settings(gather({"MODEL_NAME": "org/model", **environ}, NOTHING)), of_vllm


@pytest.mark.parametrize("environ", CASES, ids=str)
def test_the_settings_name_what_vllm_needs(environ: dict[str, str]) -> None:
    of_settings, of_vllm = both(environ)
    assert of_settings == of_vllm
    assert [each.setting for each in of_settings] == [each.setting for each in of_vllm]


def test_adapters_are_put_where_vllm_reads_them() -> None:
    environ = {"MODEL_NAME": "org/model", "ENABLE_LORA": "1"}
    told = read_settings({**environ, "LORA_MODULES": json.dumps(ADAPTERS)}).arguments
    wanted = wanted_by_arguments(told)
    found = {each: Found(each, Path("/c") / each.model, Origin.VOLUME) for each in wanted}
    changed, used = with_directories(told, found)
    assert len(used) == 3
    assert [each.path for each in changed.vllm.lora_modules] == ["/c/org/a", "/c/org/b"]
    assert changed.vllm.model == "/c/org/model"
    assert [each.path for each in told.vllm.lora_modules] == ["org/a", "org/b"]
    assert told.vllm.model == told.model_name == "org/model"
