"""An adapter is put on the layers that a model has for it, and is the same for the same seed."""

from pathlib import Path

import pytest
import torch
from support.trainers.real import spec, tiny_model
from transformers import AutoModelForCausalLM, LlamaForCausalLM, dynamic_module_utils

from trainer.endings import Failure
from trainer.loading import base_name, load, targets, with_adapter
from trainer.spec import Lora

LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def adapted(seed: int) -> list[torch.Tensor]:
    model = with_adapter(tiny_model(), Lora(r=4), seed)
    return [each.detach() for name, each in model.named_parameters() if "lora_" in name]


def test_a_llamas_attention_and_mlp_get_an_adapter_and_nothing_else_does() -> None:
    model = with_adapter(tiny_model(), Lora(r=4), 0)
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in trained} == set(LLAMA)
    assert len(trained) == 2 * 2 * len(LLAMA)
    assert model.peft_config["default"].to_dict()["target_modules"] == set(LLAMA)
    # It is the same for the same seed.
    first, again, other = adapted(1), adapted(1), adapted(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


GPT2 = ["transformer.h.0.attn.c_attn", "transformer.h.0.mlp.c_fc", "transformer.h.0.mlp.c_proj"]
SEES = ["model.visual.blocks.0.fc1", "model.language_model.layers.0.q_proj"]


@pytest.mark.parametrize(
    ("names", "wanted", "found"),
    [
        (LLAMA, ["v_proj", "q_proj"], ["q_proj", "v_proj"]),
        (GPT2, None, ["c_attn", "c_fc", "c_proj"]),
        (SEES, None, ["q_proj"]),
        (LLAMA, ["q_proj", "c_attn"], r"no layer c_attn: it has down_proj, .*, v_proj"),
        (["model.0.mixer"], None, r"no layers that are known .*: it has mixer"),
    ],
)
def test_known_layers_or_those_that_are_asked_for_are_taken(
    names: list[str], wanted: list[str] | None, found: list[str] | str
) -> None:
    if isinstance(found, list):
        assert targets(names, wanted) == found
    else:
        with pytest.raises(Failure, match=found):
            targets(names, wanted)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("/volume/models/demo", "demo"),
        ("/cache/models--org--name/snapshots/0123", "org/name"),
        ("/snapshots/demo", "demo"),
    ],
)
def test_a_base_is_named_without_its_place(place: str, name: str) -> None:
    assert base_name(Path(place)) == name


@pytest.mark.parametrize(
    "config", ['{"model_type": "none"}', '{"model_type": "llama", "num_hidden_layers": 1}']
)
def test_a_model_that_is_none_is_named_without_its_place(tmp_path: Path, config: str) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text(config)
    with pytest.raises(Failure, match="can't be loaded") as raised:
        load(spec(tmp_path))
    assert str(tmp_path) not in str(raised.value)


def test_code_of_a_model_that_cannot_be_imported_is_told_without_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    base = tmp_path / "base"
    base.mkdir()
    names = '{"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}'
    (base / "config.json").write_text(f'{{"model_type": "own", "auto_map": {names}}}')
    (base / "code.py").write_text("from os import nothing\n")
    with pytest.raises(Failure, match=r"import name 'nothing' from 'os' \(\.\.\.\)"):
        load(spec(tmp_path).model_copy(update={"trust_remote_code": True}))


def test_of_several_gpus_one_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def from_pretrained(*_: object, **how: object) -> LlamaForCausalLM:
        given.append(how["device_map"])
        return tiny_model()

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", from_pretrained)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    load(spec(tmp_path, device="cuda"))
    assert given == [{"": 0}]
