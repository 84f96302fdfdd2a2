"""Models with random weights are complete, in the formats of Hugging Face and PEFT."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from proof.machine import random_model
from proof.machine.random_model import SIZES, make_adapter, make_model, train_tokenizer


@pytest.mark.slow
def test_transformers_loads_all_weights_from_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_model, "SHARD_BYTES", 500_000)
    make_model(tmp_path, replace(SIZES["tiny"], layers=2))
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    model, problems = loaded
    assert not any(problems.values())
    prompt = AutoTokenizer.from_pretrained(tmp_path)("gagege", return_tensors="pt")
    logits = model(**prompt).logits
    assert torch.isfinite(logits).all()
    assert logits.std() > 0.01


@pytest.mark.slow
def test_every_token_of_a_large_vocabulary_has_text() -> None:
    tokenizer = train_tokenizer(SIZES["0.5B"].tokens)
    assert tokenizer.get_vocab_size() == SIZES["0.5B"].tokens
    tokens = range(len(random_model.SPECIAL), SIZES["0.5B"].tokens)
    texts = tokenizer.decode_batch([[0, token] for token in tokens])
    # A space alone is a token, too.
    assert [token for token, text in zip(tokens, texts, strict=True) if not text.strip()] == [
        tokenizer.token_to_id("▁")
    ]


@pytest.mark.slow
def test_adapters_have_the_shapes_of_their_model_and_differ(tmp_path: Path) -> None:
    make_model(tmp_path / "model", SIZES["tiny"])
    for number in (1, 2):
        make_adapter(tmp_path / str(number), tmp_path / "model", number)
    first, second = (load_file(tmp_path / name / "adapter_model.safetensors") for name in "12")
    assert {name.split(".")[-3]: tuple(each.shape) for name, each in first.items()} == {
        "q_proj": (128, 8),
        "v_proj": (64, 8),
    }
    assert first.keys() == second.keys()
    assert not any(torch.equal(first[name], second[name]) for name in first)
    config = json.loads((tmp_path / "1" / "adapter_config.json").read_text())
    assert (config["r"], config["target_modules"]) == (8, ["q_proj", "v_proj"])
