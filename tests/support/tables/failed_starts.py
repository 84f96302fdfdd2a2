"""Misconfigurations with which a worker does not start, and faults of its machine.

A row is what was done, the settings, and what the answer must name: the settings to change.
``<folder>`` in a value stands for a directory that holds what ``place`` writes.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from support.processes.commands import DEMO
from support.tables.planted_mistakes import FILES, SECRET


class Row(NamedTuple):
    """A start that fails; ``hub``: it downloads, from a hub on loopback."""

    done: str
    settings: dict[str, str]
    named: tuple[str, ...]
    hub: bool = False


def _demo(done: str, named: str, **settings: str) -> Row:
    return Row(done, {"MODEL_NAME": "<folder>/demo", **settings}, (named,))


def _model(done: str, directory: str, *named: str, **settings: str) -> Row:
    return Row(done, {"MODEL_NAME": f"<folder>/{directory}", **settings}, named)


MISTAKES = (
    Row("no model is named", {}, ("MODEL_NAME",)),
    _model("a directory that is not there", "nothing", "MODEL_NAME"),
    Row("an address as the model", {"MODEL_NAME": "https://huggingface.co/a/b"}, ("MODEL_NAME",)),
    _demo("two names for two models", "MODEL_NAME", MODEL="org/other"),
    _model("an architecture that vLLM has not", "architecture", "FooForCausalLM"),
    _demo("a context that is no number", "MAX_MODEL_LEN", MAX_MODEL_LEN="abc"),
    _demo("a longer context than the model's", "MAX_MODEL_LEN", MAX_MODEL_LEN="999999"),
    # Only the core notices, which is a process of its own by then.
    _demo(
        "memory for less than one context",
        "MAX_MODEL_LEN",
        MAX_MODEL_LEN="2048",
        NUM_GPU_BLOCKS_OVERRIDE="2",
    ),
    _demo("AWQ of a model that has none", "QUANTIZATION", QUANTIZATION="awq"),
    _demo("GPTQ of a model that has none", "QUANTIZATION", QUANTIZATION="gptq"),
    _demo("a quantization of old", "QUANTIZATION", QUANTIZATION="squeezellm"),
    _demo("a type that is none", "DTYPE", DTYPE="float8"),
    _demo("no GPU at all", "TENSOR_PARALLEL_SIZE", TENSOR_PARALLEL_SIZE="0"),
    _demo("a negative size", "PIPELINE_PARALLEL_SIZE", PIPELINE_PARALLEL_SIZE="-1"),
    _demo("a share in percent", "GPU_MEMORY_UTILIZATION", GPU_MEMORY_UTILIZATION="95%"),
    _demo("no request at once", "MAX_NUM_SEQS", MAX_NUM_SEQS="0"),
    _demo("no token in a block", "BLOCK_SIZE", BLOCK_SIZE="0"),
    _demo("a cache of a type that is none", "KV_CACHE_DTYPE", KV_CACHE_DTYPE="fp7"),
    _demo("a misspelt format", "LOAD_FORMAT", LOAD_FORMAT="safetensor"),
    _demo("an odd rank", "MAX_LORA_RANK", MAX_LORA_RANK="17"),
    _demo("adapters that are turned off", "ENABLE_LORA", LORA_MODULES="a=org/a"),
    _demo("an adapter that is not there", "LORA_MODULES", ENABLE_LORA="1", LORA_MODULES="a=/no"),
    _demo("a misspelt tool parser", "TOOL_CALL_PARSER", TOOL_CALL_PARSER="hermess"),
    _demo("tools without a parser", "TOOL_CALL_PARSER", ENABLE_AUTO_TOOL_CHOICE="1"),
    _demo("a misspelt reasoning parser", "REASONING_PARSER", REASONING_PARSER="qwen33"),
    _demo("a template that is none", "CUSTOM_CHAT_TEMPLATE", CUSTOM_CHAT_TEMPLATE="{% if %}"),
    _demo("a template that is not there", "CUSTOM_CHAT_TEMPLATE", CUSTOM_CHAT_TEMPLATE="/no.jinja"),
    _demo("a plugin that is not there", "TOOL_PARSER_PLUGIN", TOOL_PARSER_PLUGIN="/no.py"),
    _demo("a speculation that is no object", "SPECULATIVE_CONFIG", SPECULATIVE_CONFIG="5"),
    _demo("broken JSON with a key in it", "HF_OVERRIDES", HF_OVERRIDES=f'{{"key": "{SECRET}"'),
    _demo("a tokenizer that is not there", "TOKENIZER_NAME", TOKENIZER_NAME="<folder>/nothing"),
    _demo("an embedder that is not there", "EMBEDDING_MODEL_NAME", EMBEDDING_MODEL_NAME="/no"),
    _demo("no job at once", "MAX_CONCURRENCY", MAX_CONCURRENCY="0"),
    _demo("a boolean that is none", "RAW_OPENAI_OUTPUT", RAW_OPENAI_OUTPUT="2"),
    _demo("a file that is not there", "VLLM_CONFIG_FILE", VLLM_CONFIG_FILE="<folder>/no.yaml"),
    _demo("an argument that is none", "VLLM_EXTRA_ARGS", VLLM_EXTRA_ARGS="--no-such 5"),
    Row("a repository that is not there", {"MODEL_NAME": "org/none"}, ("MODEL_NAME",), hub=True),
    Row(
        "a revision that is not there",
        {"MODEL_NAME": "org/model", "MODEL_REVISION": "v2"},
        ("MODEL_REVISION",),
        hub=True,
    ),
    Row("a gated model, no token", {"MODEL_NAME": "org/gated"}, ("HF_TOKEN",), hub=True),
    Row(
        "a token that the hub refuses",
        {"MODEL_NAME": "org/model", "HF_TOKEN": f"hf_{SECRET}"},
        ("HF_TOKEN",),
        hub=True,
    ),
)

# What a model's own code raises reaches the worker as what the driver would raise there.
_SAYS = {
    "driver": "CUDA driver initialization failed, you might not have a CUDA gpu.",
    "gpu": "CUDA error: uncorrectable ECC error encountered",
    "disk": "[Errno 28] No space left on device",
}
FAULTS = tuple(
    _model(done, kind, TRUST_REMOTE_CODE="1")
    for done, kind in (
        ("a driver that does not start", "driver"),
        ("a broken GPU", "gpu"),
        ("the container's disk is full", "disk"),
    )
)


def place(folder: Path) -> None:
    """Write the models and files that the rows name."""
    for name, held in FILES.items():
        (folder / name).write_text(held)
    _copy(folder / "demo", {})
    _copy(folder / "architecture", {"architectures": ["FooForCausalLM"]})
    for kind, said in _SAYS.items():
        code = {"AutoConfig": "configuration_foo.FooConfig"}
        _copy(folder / kind, {"auto_map": code, "model_type": "foo"})
        raising = f"import transformers\nraise RuntimeError({said!r})\nclass FooConfig: ...\n"
        (folder / kind / "configuration_foo.py").write_text(raising)


def _copy(directory: Path, changes: dict[str, Any]) -> None:
    """Make a model of the demo model's files, with changes to its configuration."""
    directory.mkdir()
    for file in DEMO.iterdir():
        (directory / file.name).symlink_to(file)
    config = json.loads((DEMO / "config.json").read_text())
    (directory / "config.json").unlink()
    (directory / "config.json").write_text(json.dumps({**config, **changes}))
