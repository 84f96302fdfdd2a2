"""Makes LoRA adapters with random weights for a Llama, in PEFT's format, and damages them."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from worker.volume.adapters import CONFIG, WEIGHTS

RANK = 4
MAX_RANK = 8  # maximum rank of the tests' engines
SCALE = 0.5  # of a weight; large enough to change a greedy answer

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


def set_config(**keys: Any) -> Change:
    """Set keys of the configuration; None removes a key."""

    def change(directory: Path) -> None:
        config = {**json.loads((directory / CONFIG).read_text()), **keys}
        remaining = {key: value for key, value in config.items() if value is not None}
        (directory / CONFIG).write_text(json.dumps(remaining))

    return change


def change_weights(change: Callable[[Tensors], Tensors]) -> Change:
    """Change the tensors, in a new file, since the old file may be mapped into memory."""

    def apply(directory: Path) -> None:
        changed = change(load_file(directory / WEIGHTS))
        (directory / WEIGHTS).unlink()
        save_file(changed, directory / WEIGHTS)

    return apply


def change_all_tensors(change: Callable[[str, torch.Tensor], torch.Tensor]) -> Change:
    return change_weights(
        lambda tensors: {name: change(name, old) for name, old in tensors.items()}
    )


def rename_tensors(old: str, new: str) -> Change:
    return change_weights(
        lambda tensors: {name.replace(old, new): tensor for name, tensor in tensors.items()}
    )


def reshape_tensors(**shapes: tuple[int, ...]) -> Change:
    """Replace all tensors of a part, A or B, with tensors of another shape."""

    def change(name: str, old: torch.Tensor) -> torch.Tensor:
        shape = next((shapes[part] for part in shapes if f"lora_{part}." in name), None)
        return old if shape is None else torch.full(shape, SCALE)

    return change_all_tensors(change)


def truncate_weights(directory: Path) -> None:
    whole = (directory / WEIGHTS).read_bytes()
    (directory / WEIGHTS).write_bytes(whole[:-1000])


def pickle_weights(directory: Path) -> None:
    torch.save(load_file(directory / WEIGHTS), directory / "adapter_model.bin")
    (directory / WEIGHTS).unlink()


DORA = "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector"

# Ways to damage an adapter for the demo model (hidden size 128, two layers), and a part of the
# error message.
BROKEN: dict[str, tuple[Change, str]] = {
    "no-config": (lambda directory: (directory / CONFIG).unlink(), f"no {CONFIG}"),
    "broken-json": (lambda directory: (directory / CONFIG).write_text("{"), "Invalid JSON"),
    "a-list": (lambda directory: (directory / CONFIG).write_text("[]"), "should be an object"),
    "binary": (lambda directory: (directory / CONFIG).write_bytes(b"\xff\x00"), "Invalid JSON"),
    "no-rank": (set_config(r=None), "r: Field required"),
    "rank-text": (set_config(r="4"), "r: Input should be a valid integer"),
    "rank-broken": (set_config(r=4.5), "r: Input should be a valid integer"),
    "rank-0": (set_config(r=0), "r: Input should be greater"),
    "rank-high": (set_config(r=MAX_RANK + 1), f"greater than max_lora_rank {MAX_RANK}"),
    "rank-unlike": (set_config(r=MAX_RANK), f"but r is {MAX_RANK}"),
    "alpha-text": (set_config(lora_alpha="x"), "lora_alpha: Input should be a valid number"),
    "alpha-nan": (set_config(lora_alpha=float("nan")), "lora_alpha: Input should be a finite"),
    "alpha-none": (set_config(lora_alpha=None), "lora_alpha: Field required"),
    "pattern-list": (set_config(rank_pattern=[4]), "rank_pattern: Input should be an object"),
    "no-targets": (set_config(target_modules=None), "target_modules"),
    "no-lora": (set_config(peft_type="IA3"), "peft_type: Input should be 'LORA'"),
    "bias": (set_config(bias="all"), "bias is not supported"),
    "saved": (set_config(modules_to_save=["lm_head"]), "modules_to_save"),
    "dora": (set_config(use_dora=True), "does not yet support DoRA"),
    "no-weights": (lambda directory: (directory / WEIGHTS).unlink(), f"no {WEIGHTS}"),
    "pickled": (pickle_weights, f"no {WEIGHTS}"),
    "truncated": (truncate_weights, "not fully covered"),
    "noise": (lambda directory: (directory / WEIGHTS).write_bytes(b"\xff" * 99), "header"),
    "empty": (lambda directory: (directory / WEIGHTS).write_bytes(b""), "header"),
    "no-tensors": (change_weights(lambda _: {}), "contains no tensors"),
    "rows": (reshape_tensors(A=(9, 128), B=(128, 9)), "lora_A has 9 rows"),
    "ranks": (reshape_tensors(B=(128, 6)), "lora_B 6 columns"),
    "a-large": (reshape_tensors(A=(RANK, 256)), "a weight of 128 x 256, the model's has 128 x 128"),
    "a-small": (reshape_tensors(A=(RANK, 64)), "a weight of 128 x 64, the model's has 128 x 128"),
    "b-large": (reshape_tensors(B=(256, RANK)), "a weight of 256 x 128, the model's has 128 x 128"),
    "b-small": (reshape_tensors(B=(64, RANK)), "a weight of 64 x 128, the model's has 128 x 128"),
    "b-one": (reshape_tensors(B=(1, RANK)), "a weight of 1 x 128"),
    "swapped": (reshape_tensors(A=(128, RANK), B=(RANK, 128)), "lora_A has 128 rows"),
    "flat": (reshape_tensors(A=(RANK,)), "no matrix"),
    "deep": (reshape_tensors(A=(RANK, 128, 1)), "no matrix"),
    "none-high": (reshape_tensors(A=(0, 128)), "no matrix"),
    "layers": (rename_tensors("layers.1", "layers.7"), "the model has no model.layers.7"),
    "only-a": (
        change_weights(lambda old: {name: old[name] for name in old if "lora_A" in name}),
        "has no lora_B",
    ),
    "whole": (change_all_tensors(lambda _, old: old.to(torch.int64)), "I64, not floating point"),
    "nan": (change_all_tensors(lambda _, old: old * float("nan")), "not finite"),
    "infinite": (change_all_tensors(lambda _, old: old / 0), "not finite"),
}

# Adapters that vLLM itself refuses.
REFUSED_BY_VLLM: dict[str, tuple[Change, str]] = {
    "modules": (rename_tensors("q_proj", "z_proj"), "expected target modules"),
    "magnitude": (
        change_weights(lambda old: {**old, DORA: torch.ones(128)}),
        "unsupported LoRA weight",
    ),
    "full": (
        change_weights(lambda _: {"model.layers.0.self_attn.q_proj.weight": torch.ones(128, 128)}),
        "unsupported LoRA weight",
    ),
}


LORA_CONFIG = SimpleNamespace(max_lora_rank=MAX_RANK)


def fake_client(model: Path, lora_config: Any = LORA_CONFIG) -> Any:
    """Return an object with the attributes of vLLM's client that are needed for adapters."""
    config = SimpleNamespace(
        model_config=SimpleNamespace(model=str(model), revision=None),
        load_config=SimpleNamespace(download_dir=None),
        lora_config=lora_config,
    )
    return SimpleNamespace(vllm_config=config, model_config=SimpleNamespace(runner_type="generate"))
