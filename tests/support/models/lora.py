"""Makes a LoRA adapter with random weights for a Llama, in PEFT's format, and breaks it."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from worker.volume.adapters import CONFIG, WEIGHTS

RANK = 4
MOST_RANK = 8  # the rank that the engines of the tests allow
SCALE = 0.5  # of a weight: large enough that a greedy answer changes

Tensors = dict[str, torch.Tensor]
Change = Callable[[Path], object]


def make_adapter(directory: Path, model: Path, seed: int = 1) -> None:
    """Write ``adapter_config.json`` and ``adapter_model.safetensors``."""
    config = json.loads((model / "config.json").read_text())
    widths = {
        "q_proj": config["num_attention_heads"] * config["head_dim"],
        "v_proj": config["num_key_value_heads"] * config["head_dim"],
    }
    random = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for target, width in widths.items():
            for part, shape in {"A": (RANK, config["hidden_size"]), "B": (width, RANK)}.items():
                name = f"base_model.model.model.layers.{layer}.self_attn.{target}.lora_{part}"
                weights[f"{name}.weight"] = SCALE * torch.randn(shape, generator=random)
    directory.mkdir(parents=True)
    save_file(weights, directory / WEIGHTS)
    adapter = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": list(widths),
    }
    (directory / CONFIG).write_text(json.dumps(adapter))


def configured(**keys: Any) -> Change:
    """Change keys of the configuration; None removes one."""

    def change(directory: Path) -> None:
        config = {**json.loads((directory / CONFIG).read_text()), **keys}
        kept = {key: value for key, value in config.items() if value is not None}
        (directory / CONFIG).write_text(json.dumps(kept))

    return change


def weighted(change: Callable[[Tensors], Tensors]) -> Change:
    """Change the tensors, in a new file: the old one may be mapped into memory."""

    def apply(directory: Path) -> None:
        changed = change(load_file(directory / WEIGHTS))
        (directory / WEIGHTS).unlink()
        save_file(changed, directory / WEIGHTS)

    return apply


def all_tensors(change: Callable[[str, torch.Tensor], torch.Tensor]) -> Change:
    return weighted(lambda tensors: {name: change(name, old) for name, old in tensors.items()})


def renamed(old: str, new: str) -> Change:
    return weighted(
        lambda tensors: {name.replace(old, new): tensor for name, tensor in tensors.items()}
    )


def shaped(**shapes: tuple[int, ...]) -> Change:
    """Give all tensors of a part, A or B, another shape."""

    def change(name: str, old: torch.Tensor) -> torch.Tensor:
        shape = next((shapes[part] for part in shapes if f"lora_{part}." in name), None)
        return old if shape is None else torch.full(shape, SCALE)

    return all_tensors(change)


def truncated(directory: Path) -> None:
    whole = (directory / WEIGHTS).read_bytes()
    (directory / WEIGHTS).write_bytes(whole[:-1000])


def pickled(directory: Path) -> None:
    torch.save(load_file(directory / WEIGHTS), directory / "adapter_model.bin")
    (directory / WEIGHTS).unlink()


DORA = "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector"

# Ways to break an adapter for the demo model (hidden size 128, two layers), and a part of the
# message.
BROKEN: dict[str, tuple[Change, str]] = {
    "no-config": (lambda directory: (directory / CONFIG).unlink(), f"no {CONFIG}"),
    "broken-json": (lambda directory: (directory / CONFIG).write_text("{"), "Invalid JSON"),
    "a-list": (lambda directory: (directory / CONFIG).write_text("[]"), "should be an object"),
    "binary": (lambda directory: (directory / CONFIG).write_bytes(b"\xff\x00"), "Invalid JSON"),
    "no-rank": (configured(r=None), "r: Field required"),
    "rank-text": (configured(r="4"), "r: Input should be a valid integer"),
    "rank-broken": (configured(r=4.5), "r: Input should be a valid integer"),
    "rank-0": (configured(r=0), "r: Input should be greater"),
    "rank-high": (configured(r=MOST_RANK + 1), f"greater than max_lora_rank {MOST_RANK}"),
    "rank-unlike": (configured(r=MOST_RANK), f"but r is {MOST_RANK}"),
    "alpha-text": (configured(lora_alpha="x"), "lora_alpha: Input should be a valid number"),
    "alpha-nan": (configured(lora_alpha=float("nan")), "lora_alpha: Input should be a finite"),
    "alpha-none": (configured(lora_alpha=None), "lora_alpha: Field required"),
    "pattern-list": (configured(rank_pattern=[4]), "rank_pattern: Input should be an object"),
    "no-targets": (configured(target_modules=None), "target_modules"),
    "no-lora": (configured(peft_type="IA3"), "peft_type: Input should be 'LORA'"),
    "bias": (configured(bias="all"), "bias is not supported"),
    "saved": (configured(modules_to_save=["lm_head"]), "modules_to_save"),
    "dora": (configured(use_dora=True), "does not yet support DoRA"),
    "no-weights": (lambda directory: (directory / WEIGHTS).unlink(), f"no {WEIGHTS}"),
    "pickled": (pickled, f"no {WEIGHTS}"),
    "truncated": (truncated, "not fully covered"),
    "noise": (lambda directory: (directory / WEIGHTS).write_bytes(b"\xff" * 99), "header"),
    "empty": (lambda directory: (directory / WEIGHTS).write_bytes(b""), "header"),
    "no-tensors": (weighted(lambda _: {}), "holds no tensors"),
    "rows": (shaped(A=(9, 128), B=(128, 9)), "lora_A has 9 rows"),
    "ranks": (shaped(B=(128, 6)), "lora_B 6 columns"),
    "a-large": (shaped(A=(RANK, 256)), "a weight of 128 x 256, the model's has 128 x 128"),
    "a-small": (shaped(A=(RANK, 64)), "a weight of 128 x 64, the model's has 128 x 128"),
    "b-large": (shaped(B=(256, RANK)), "a weight of 256 x 128, the model's has 128 x 128"),
    "b-small": (shaped(B=(64, RANK)), "a weight of 64 x 128, the model's has 128 x 128"),
    "b-one": (shaped(B=(1, RANK)), "a weight of 1 x 128"),
    "swapped": (shaped(A=(128, RANK), B=(RANK, 128)), "lora_A has 128 rows"),
    "flat": (shaped(A=(RANK,)), "no matrix"),
    "deep": (shaped(A=(RANK, 128, 1)), "no matrix"),
    "none-high": (shaped(A=(0, 128)), "no matrix"),
    "layers": (renamed("layers.1", "layers.7"), "the model has no model.layers.7"),
    "only-a": (
        weighted(lambda old: {name: old[name] for name in old if "lora_A" in name}),
        "has no lora_B",
    ),
    "whole": (all_tensors(lambda _, old: old.to(torch.int64)), "I64, not floating point"),
    "nan": (all_tensors(lambda _, old: old * float("nan")), "not finite"),
    "infinite": (all_tensors(lambda _, old: old / 0), "not finite"),
}

# Those that vLLM itself refuses.
REFUSED_BY_VLLM: dict[str, tuple[Change, str]] = {
    "modules": (renamed("q_proj", "z_proj"), "expected target modules"),
    "magnitude": (weighted(lambda old: {**old, DORA: torch.ones(128)}), "unsupported LoRA weight"),
    "full": (
        weighted(lambda _: {"model.layers.0.self_attn.q_proj.weight": torch.ones(128, 128)}),
        "unsupported LoRA weight",
    ),
}


LORA_CONFIG = SimpleNamespace(max_lora_rank=MOST_RANK)


def client(model: Path, lora_config: Any = LORA_CONFIG) -> Any:
    """Return a client of vLLM's, as far as adapters ask it."""
    config = SimpleNamespace(
        model_config=SimpleNamespace(model=str(model), revision=None),
        load_config=SimpleNamespace(download_dir=None),
        lora_config=lora_config,
    )
    return SimpleNamespace(vllm_config=config, model_config=SimpleNamespace(runner_type="generate"))
