"""Makes models with random weights, in the shapes of real ones, and adapters for them.

    PYTHONPATH=src python -m proof.machine.random_model .models/random [--size tiny|0.5B|8B]
    PYTHONPATH=src python -m proof.machine.random_model FOLDER --adapters 2 --model .models/random

Random weights are as fast as trained ones, and need no download. All sizes are Qwen3, with a
tokenizer whose tokens all have text (BPE on characters with marked spaces, as made by
SentencePiece). `tiny` has one layer, so that the engine core's share of the time is small. The
files are the same each time. Adapters are written to `adapter-1`, `adapter-2`, ...
"""

import argparse
import itertools
import json
import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SEED = 11
TRAINED_TOKENS = 1536
PAD, UNKNOWN, USER, MODEL, END = SPECIAL = ["[PAD]", "[UNK]", "[USER]", "[MODEL]", "[END]"]
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ "[USER] " if message.role != "assistant" else "[MODEL] " }}{{ message.content }} [END]
{%- endfor -%}
{%- if add_generation_prompt %}[MODEL]{% endif -%}"""
SYLLABLES = [first + vowel for first in "bcdfghjklmnpqrstvwxyz" for vowel in "aeiou"]
# Maximum size of a file of weights, in bytes.
SHARD_BYTES = 2**32
LORA_RANK = 8
LORA_TARGETS = ("q_proj", "v_proj")


@dataclass(frozen=True)
class ModelSize:
    """The shape of a model."""

    layers: int
    width: int  # of the hidden states
    inner_width: int  # of the states inside the MLP
    heads: int
    kv_heads: int
    head_width: int  # vLLM's CPU backend refuses small ones
    tokens: int  # of the vocabulary
    context: int  # maximum number of tokens of a prompt and its answer
    # Standard deviation of the weights; with the usual 0.02, a small model would repeat one token.
    deviation: float = 0.02
    tied: bool = False  # whether the output uses the embeddings of the input
    dtype: torch.dtype = torch.bfloat16


SIZES = {
    "tiny": ModelSize(1, 64, 128, 2, 1, 64, TRAINED_TOKENS, 32_768, 0.2, dtype=torch.float32),
    # The widths of Qwen3-0.6B with fewer layers: 502 million parameters.
    "0.5B": ModelSize(22, 1024, 3072, 16, 8, 128, 151_936, 32_768, tied=True),
    # The shape of Qwen3-8B: 8.2 billion parameters.
    "8B": ModelSize(36, 4096, 12_288, 32, 8, 128, 151_936, 32_768),
}


def invent_sentences() -> list[str]:
    """Return sentences of invented words, always the same ones."""
    rng = random.Random(SEED)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(4_000)]
    return [f"{' '.join(rng.choices(words, k=12))}." for _ in range(2_000)]


def train_tokenizer(tokens: int) -> Tokenizer:
    """Train a tokenizer; add words that no text contains, up to a number of tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=TRAINED_TOKENS,
        special_tokens=SPECIAL,
        initial_alphabet=list(string.ascii_letters + string.digits + string.punctuation),
        show_progress=False,
    )
    tokenizer.train_from_iterator(invent_sentences(), trainer)
    content = json.loads(tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    words = (f"▁{''.join(parts).upper()}" for parts in itertools.product(SYLLABLES, repeat=3))
    vocabulary |= {word: len(vocabulary) + n for n, word in enumerate(words)}
    content["model"]["vocab"] = {word: n for word, n in vocabulary.items() if n < tokens}
    return Tokenizer.from_str(json.dumps(content))


def save_tokenizer(directory: Path, size: ModelSize) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers left it so
        tokenizer_object=train_tokenizer(size.tokens),
        unk_token=UNKNOWN,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, MODEL],
        chat_template=CHAT_TEMPLATE,
        model_max_length=size.context,
    )
    tokenizer.save_pretrained(directory)
    # The name that transformers 4 also knows.
    config_file = directory / "tokenizer_config.json"
    content = config_file.read_text().replace("TokenizersBackend", "PreTrainedTokenizerFast")
    config_file.write_text(content)
    return tokenizer


def random_weights(config: Any, deviation: float) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights of a model one by one; those of norms are 1.

    They are parts of one row of random numbers, which takes much less time than as many new ones.
    """
    with torch.device("meta"):
        parameters = dict(Qwen3ForCausalLM(config).named_parameters())  # type: ignore[no-untyped-call]  # transformers left it so
    longest = max(each.numel() for each in parameters.values())
    torch.manual_seed(SEED)
    numbers = (deviation * torch.randn(longest + len(parameters))).to(config.dtype)
    for offset, (name, parameter) in enumerate(parameters.items()):
        values = numbers[offset : offset + parameter.numel()].reshape(parameter.shape)
        yield name, torch.ones_like(values) if "norm" in name else values.clone()


def save_weights(directory: Path, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    """Write weights to one file or several, with an index as of Hugging Face's models."""
    shards: list[dict[str, torch.Tensor]] = [{}]
    index: dict[str, str] = {}
    size = total = 0

    def write_shard() -> None:
        name = f"model-{len(shards):05d}.safetensors"
        save_file(shards[-1], directory / name, metadata={"format": "pt"})
        index.update(dict.fromkeys(shards[-1], name))

    for name, tensor in weights:
        if size + tensor.nbytes > SHARD_BYTES:
            write_shard()
            shards[-1].clear()
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
        total += tensor.nbytes
    write_shard()
    content = {"metadata": {"total_size": total}, "weight_map": index}
    (directory / "model.safetensors.index.json").write_text(json.dumps(content))


def make_model(directory: Path, size: ModelSize) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = save_tokenizer(directory, size)
    config = Qwen3Config(
        architectures=["Qwen3ForCausalLM"],
        dtype=size.dtype,
        vocab_size=size.tokens,
        hidden_size=size.width,
        intermediate_size=size.inner_width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.head_width,
        max_position_embeddings=size.context,
        tie_word_embeddings=size.tied,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )
    save_weights(directory, random_weights(config, size.deviation))
    # Last: a folder with a configuration is complete.
    config.save_pretrained(directory)


def make_adapter(directory: Path, model: Path, seed: int) -> None:
    """Write an adapter with random weights, in PEFT's format, for the model of a directory."""
    with torch.device("meta"):
        whole = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))  # type: ignore[no-untyped-call]  # see above
    torch.manual_seed(seed)
    weights = {}
    for name, module in whole.named_modules():
        if name.endswith(LORA_TARGETS):
            rows, columns = module.weight.shape
            # Large enough to change a greedy answer.
            for part, shape in (("A", (LORA_RANK, columns)), ("B", (rows, LORA_RANK))):
                weights[f"base_model.model.{name}.lora_{part}.weight"] = torch.randn(shape) / 2
    if not weights:
        raise SystemExit(f"the model has no layers {' and '.join(LORA_TARGETS)}")
    directory.mkdir(parents=True, exist_ok=True)
    save_file(weights, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": LORA_RANK}
    config |= {"lora_alpha": LORA_RANK, "target_modules": list(LORA_TARGETS)}
    (directory / "adapter_config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=tuple(SIZES), default="tiny")
    parser.add_argument("--adapters", type=int, default=0, help="number of adapters to make")
    parser.add_argument("--model", type=Path, help="the adapters' model; otherwise a model is made")
    arguments = parser.parse_args()
    if not arguments.model:
        make_model(arguments.folder, SIZES[arguments.size])
    for number in range(1, arguments.adapters + 1):
        directory = arguments.folder / f"adapter-{number}"
        make_adapter(directory, arguments.model or arguments.folder, number)
