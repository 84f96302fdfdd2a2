"""Repositories read from the settings are those that vLLM's arguments then need; their disks."""

import json
from pathlib import Path

import pytest
from support.settings import read_settings

from worker.engine.configuring import configure
from worker.engine.options import Options, read_ahead
from worker.settings.sources import gather
from worker.start.needs import wanted_by_arguments, wanted_by_settings
from worker.store import Wanted

NOTHING = Path("/no such file")
ADAPTERS = [{"name": "a", "path": "org/a"}, {"name": "b", "path": "org/b", "base_model_name": "x"}]
DRAFT = {"model": "org/draft", "revision": "v3", "num_speculative_tokens": 2}

CASES: list[dict[str, str]] = [
    {},
    {"MODEL_REVISION": "v1", "LOAD_FORMAT": "safetensors"},
    {"TOKENIZER_NAME": "org/tokenizer", "TOKENIZER_REVISION": "v2", "MODEL_REVISION": "v1"},
    {"TOKENIZER_REVISION": "v2"},
    {"TOKENIZER_NAME": "org/model", "TOKENIZER_REVISION": "v1", "MODEL_REVISION": "v1"},
    {"TOKENIZER_REVISION": "v2", "SKIP_TOKENIZER_INIT": "1"},
    {"DOWNLOAD_DIR": "/downloads"},
    {"TRUST_REMOTE_CODE": "true"},
    {"ENABLE_LORA": "1", "LORA_MODULES": json.dumps(ADAPTERS)},
    {"ENABLE_LORA": "1", "LORA_MODULES": "a=org/a b=org/b"},
    {"ENABLE_LORA": "1", "LORA_MODULES": "a=/adapters/a"},
    {"SPECULATIVE_CONFIG": json.dumps(DRAFT), "MODEL_REVISION": "v1"},
    {"SPECULATIVE_CONFIG": '{"method": "ngram", "num_speculative_tokens": 2}'},
    {"SPECULATIVE_MODEL": "org/draft", "NUM_SPECULATIVE_TOKENS": "2"},
    {"VLLM_EXTRA_ARGS": "--model-impl transformers"},
    {"EMBEDDING_MODEL_NAME": "org/embedder", "EMBEDDING_MODEL_REVISION": "v4"},
    {"EMBEDDING_MODEL_NAME": "org/embedder", "EMBEDDING_TOKENIZER_NAME": "org/tokenizer"},
    {"MODEL_REVISION": "v1", "TRUST_REMOTE_CODE": "1", "EMBEDDING_MODEL_NAME": "org/model"},
]


def both(environ: dict[str, str]) -> tuple[list[Wanted], list[Wanted]]:
    result = read_settings({"MODEL_NAME": "org/model", **environ})
    of_vllm = [wanted for engine in result.engines for wanted in wanted_by_arguments(engine)]
    return wanted_by_settings(gather({"MODEL_NAME": "org/model", **environ}, NOTHING)), of_vllm


@pytest.mark.parametrize("environ", CASES, ids=str)
def test_the_settings_name_what_vllm_needs(environ: dict[str, str]) -> None:
    of_settings, of_vllm = both(environ)
    assert of_settings == of_vllm
    assert [one.setting for one in of_settings] == [one.setting for one in of_vllm]


def test_weights_on_a_network_disk_are_read_ahead(
    demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/root / ext4 rw 0 0\nvolume {demo_model.resolve()} fuse.mfs rw 0 0\n")
    monkeypatch.setattr(read_ahead, "MOUNTS", mounts)
    changed, config = configure(Options().parse({"MODEL": str(demo_model)}))
    assert config.load_config.safetensors_load_strategy == "prefetch"
    assert "SAFETENSORS_LOAD_STRATEGY" in [default.name for default in changed.defaults]
