"""Adapters on the layers of a model, and errors of base models that can't be loaded."""

from pathlib import Path

import pytest
import torch
from support.trainers.real import spec, tiny_model
from transformers import AutoModelForCausalLM, LlamaForCausalLM, dynamic_module_utils

from trainer.interruptions import TrainingFailure
from trainer.loading import add_adapter, choose_target_modules, load_model, model_name
from worker.fine_tunes.spec import Lora

LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def adapter_weights(seed: int) -> list[torch.Tensor]:
    model = add_adapter(tiny_model(), Lora(r=4), seed)
    return [each.detach() for name, each in model.named_parameters() if "lora_" in name]


def test_only_the_attention_and_mlp_of_a_llama_get_an_adapter() -> None:
    model = add_adapter(tiny_model(), Lora(r=4), 0)
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in trained} == set(LLAMA)
    assert len(trained) == 2 * 2 * len(LLAMA)
    assert model.peft_config["default"].to_dict()["target_modules"] == set(LLAMA)
    # The same seed creates the same adapter.
    first, again, other = adapter_weights(1), adapter_weights(1), adapter_weights(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


GPT2 = ["transformer.h.0.attn.c_attn", "transformer.h.0.mlp.c_fc", "transformer.h.0.mlp.c_proj"]
VISION = ["model.visual.blocks.0.fc1", "model.language_model.layers.0.q_proj"]


@pytest.mark.parametrize(
    ("names", "requested_modules", "expected"),
    [
        (LLAMA, ["v_proj", "q_proj"], ["q_proj", "v_proj"]),
        (GPT2, None, ["c_attn", "c_fc", "c_proj"]),
        (VISION, None, ["q_proj"]),
        (LLAMA, ["q_proj", "c_attn"], r"no layer c_attn: it has down_proj, .*, v_proj"),
        (["model.0.mixer"], None, r"no layers that are known .*: it has mixer"),
    ],
)
def test_known_or_requested_layers_are_chosen(
    names: list[str], requested_modules: list[str] | None, expected: list[str] | str
) -> None:
    if isinstance(expected, list):
        assert choose_target_modules(names, requested_modules) == expected
    else:
        with pytest.raises(TrainingFailure, match=expected):
            choose_target_modules(names, requested_modules)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/volume/models/demo", "demo"),
        ("/cache/models--org--name/snapshots/0123", "org/name"),
        ("/snapshots/demo", "demo"),
    ],
)
def test_a_base_model_is_named_without_its_path(path: str, name: str) -> None:
    assert model_name(Path(path)) == name


@pytest.mark.parametrize(
    "config", ['{"model_type": "none"}', '{"model_type": "llama", "num_hidden_layers": 1}']
)
def test_the_error_of_an_invalid_model_does_not_contain_its_path(
    tmp_path: Path, config: str
) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text(config)
    with pytest.raises(TrainingFailure, match="can't be loaded") as raised:
        load_model(spec(tmp_path))
    assert str(tmp_path) not in str(raised.value)


def test_the_error_of_a_failed_import_of_model_code_does_not_contain_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    base = tmp_path / "base"
    base.mkdir()
    names = '{"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}'
    (base / "config.json").write_text(f'{{"model_type": "own", "auto_map": {names}}}')
    (base / "code.py").write_text("from os import nothing\n")
    with pytest.raises(TrainingFailure, match=r"import name 'nothing' from 'os' \(\.\.\.\)"):
        load_model(spec(tmp_path).model_copy(update={"trust_remote_code": True}))


def test_one_of_several_gpus_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device_maps = []

    def from_pretrained(*_: object, **options: object) -> LlamaForCausalLM:
        device_maps.append(options["device_map"])
        return tiny_model()

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", from_pretrained)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    load_model(spec(tmp_path, device="cuda"))
    assert device_maps == [{"": 0}]
