"""Settings and models as operators pair them, and whether a worker without a GPU starts with them.

``<name>`` in a value stands for a directory of ``PLACES``; all of them are made by ``places``. The
words of a row are what both the doctor and the start say about it.
"""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from support.models.configs import WHISPER
from support.models.lora import CONFIG, configured, make_adapter
from support.models.minilm import MODEL as MINILM


@dataclass(frozen=True)
class Pair:
    """Settings, and what is said of them; without MODEL_NAME it is the demo model.

    ``of_start``: words of the start, where the library that reads the weights has others.
    """

    name: str
    settings: dict[str, str] = field(default_factory=dict)
    words: str = ""
    of_start: str = ""

    @property
    def starts(self) -> bool:
        return not self.words


def environ(pair: Pair, directory: Path) -> dict[str, str]:
    """Return the variables of a pair, with the directories that ``places`` made."""
    settings = {"MODEL_NAME": "<demo>", "HF_HUB_OFFLINE": "1", **pair.settings}
    for place in directory.iterdir():
        settings = {
            name: value.replace(f"<{place.name}>", str(place)) for name, value in settings.items()
        }
    return {**settings, "HF_HOME": str(directory / "no cache")}


def places(demo: Path, directory: Path) -> None:
    """Make the models and adapters of the pairs."""
    (directory / "demo").symlink_to(demo)
    (directory / "minilm").symlink_to(MINILM)
    _copy(demo, directory / "xverse", architectures=["XverseForCausalLM"])
    _copy(demo, directory / "foreign", model_type="own", auto_map={"AutoConfig": "own.Own"})
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
    _copy(demo, directory / "gptq", quantization_config=gptq)
    _copy(demo, directory / "odd heads", num_attention_heads=3)
    _copy(demo, directory / "speech", **WHISPER)
    cut = _copy(demo, directory / "cut") / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-1])
    (_copy(demo, directory / "weightless") / "model.safetensors").unlink()
    (_copy(demo, directory / "shapeless") / "config.json").write_text("{")
    make_adapter(directory / "adapter", demo)
    make_adapter(directory / "rank64", demo)
    configured(r=64)(directory / "rank64")
    make_adapter(directory / "broken", demo)
    (directory / "broken" / CONFIG).unlink()


def _copy(model: Path, folder: Path, **config: object) -> Path:
    shutil.copytree(model, folder)
    before = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**before, **config}))
    return folder


_DRAFT = {"SPECULATIVE_MODEL": "<demo>", "NUM_SPECULATIVE_TOKENS": "3"}
_LORA = {"ENABLE_LORA": "1", "LORA_MODULES": "sql=<adapter>"}
_REASONING = Path(__file__).parents[2] / "plugins" / "reasoning_parser.py"
_NUMA = "Not enough allowed NUMA nodes"
_NO_QUANTIZATION = "Cannot find the config file for"

PAIRS: tuple[Pair, ...] = (
    Pair("the demo model alone"),
    Pair("a shorter context", {"MAX_MODEL_LEN": "1024"}),
    Pair("the longest context that fits", {"MAX_MODEL_LEN": "-1"}),
    Pair("half precision", {"DTYPE": "float16"}),
    Pair("bfloat16", {"DTYPE": "bfloat16"}),
    Pair("a block size that the CPU's attention has", {"BLOCK_SIZE": "64"}),
    Pair("two engines that share the work", {"DATA_PARALLEL_SIZE": "2"}),
    Pair("few tokens a step", {"MAX_NUM_BATCHED_TOKENS": "16"}),
    Pair(
        "as many tokens a step as texts", {"MAX_NUM_SEQS": "512", "MAX_NUM_BATCHED_TOKENS": "512"}
    ),
    Pair("a cache in eight bits", {"KV_CACHE_DTYPE": "fp8"}),
    Pair("a GPU's attention, which is passed over", {"ATTENTION_BACKEND": "FLASHINFER"}),
    Pair(
        "speculation without a model",
        {"SPECULATIVE_METHOD": "ngram", "NUM_SPECULATIVE_TOKENS": "3"},
    ),
    Pair("a draft model", _DRAFT),
    Pair("room for adapters of a high rank", {"ENABLE_LORA": "1", "MAX_LORA_RANK": "64"}),
    Pair("an adapter", _LORA),
    Pair("the code of transformers", {"MODEL_IMPL": "transformers"}),
    Pair("a text model that embeds", {"RUNNER": "pooling"}),
    Pair("an embedder alone", {"MODEL_NAME": "<minilm>"}),
    Pair("an embedder beside it", {"EMBEDDING_MODEL_NAME": "<minilm>"}),
    Pair("most of a GPU that is not there", {"GPU_MEMORY_UTILIZATION": "0.99"}),
    Pair("offloading from a GPU that is not there", {"CPU_OFFLOAD_GB": "4"}),
    Pair("a parser of reasoning", {"REASONING_PARSER": "qwen3"}),
    Pair(
        "a parser of reasoning of the operator's own",
        {"REASONING_PARSER": "until_comma", "REASONING_PARSER_PLUGIN": str(_REASONING)},
    ),
    Pair("a parser of tool calls", {"ENABLE_AUTO_TOOL_CHOICE": "1", "TOOL_CALL_PARSER": "hermes"}),
    Pair(
        "quantized to integers at the start",
        {"QUANTIZATION": "int8_per_channel_weight_only", "DTYPE": "bfloat16"},
    ),
    Pair(
        "two parts, bound to CPUs by hand",
        {"TENSOR_PARALLEL_SIZE": "2", "VLLM_CPU_OMP_THREADS_BIND": "0|1"},
    ),
    Pair(
        "a longer context, by force",
        {"MAX_MODEL_LEN": "4096", "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"},
    ),
    Pair("a console's None", {"QUANTIZATION": "None", "MAX_MODEL_LEN": ""}),
    Pair(
        "settings that vLLM has dropped", {"SWAP_SPACE": "4", "MAX_CONTEXT_LEN_TO_CAPTURE": "8192"}
    ),
    Pair("a quantization that the model has not", {"QUANTIZATION": "awq"}, _NO_QUANTIZATION),
    Pair("another one", {"QUANTIZATION": "gptq"}, _NO_QUANTIZATION),
    Pair("one of NVIDIA's", {"QUANTIZATION": "modelopt"}, _NO_QUANTIZATION),
    Pair(
        "one whose settings only a model has",
        {"QUANTIZATION": "compressed-tensors"},
        "leave QUANTIZATION unset",
    ),
    Pair(
        "another one than the model's own",
        {"MODEL_NAME": "<gptq>", "QUANTIZATION": "awq"},
        "does not match the quantization",
    ),
    Pair(
        "one that vLLM has dropped",
        {"QUANTIZATION": "squeezellm"},
        "vLLM has had no squeezellm since 0.6",
    ),
    Pair(
        "a GPU's, in float32",
        {"QUANTIZATION": "fp8"},
        "is not supported for quantization method fp8",
    ),
    Pair("a GPU's", {"QUANTIZATION": "fp8", "DTYPE": "bfloat16"}, "can't quantize a model to fp8"),
    Pair(
        "a GPU's, part by part",
        {"QUANTIZATION": "fp8_per_tensor", "DTYPE": "bfloat16"},
        "can't quantize a model to fp8_per_tensor",
    ),
    Pair("two GPUs", {"TENSOR_PARALLEL_SIZE": "2"}, _NUMA),
    Pair(
        "three GPUs for two heads",
        {"TENSOR_PARALLEL_SIZE": "3"},
        "must be divisible by tensor parallel size",
    ),
    Pair("two GPUs, one after the other", {"PIPELINE_PARALLEL_SIZE": "2"}, _NUMA),
    Pair("the older worker's block size", {"BLOCK_SIZE": "16"}, "No common block size for 16"),
    Pair("a block size that nobody has", {"BLOCK_SIZE": "7"}, "set BLOCK_SIZE to a multiple of 32"),
    Pair("a context that is too long", {"MAX_MODEL_LEN": "4096"}, "set MAX_MODEL_LEN=2048"),
    Pair("no context", {"MAX_MODEL_LEN": "0"}, "a whole number above 0"),
    Pair(
        "a context that is no number",
        {"MAX_MODEL_LEN": "8k tokens"},
        "a whole number, or one such as 16k",
    ),
    Pair(
        "another format of configurations",
        {"CONFIG_FORMAT": "mistral"},
        "leave CONFIG_FORMAT unset",
    ),
    Pair("another kind of tokenizer", {"TOKENIZER_MODE": "mistral"}, "No tokenizer file found"),
    Pair("weights in another format", {"LOAD_FORMAT": "mistral"}, "weights"),
    Pair(
        "weights in a format that vLLM has dropped",
        {"LOAD_FORMAT": "gguf"},
        "vLLM has had no gguf since",
    ),
    Pair("experts that the model has not", {"ENABLE_EXPERT_PARALLEL": "1"}, "Number of experts"),
    Pair(
        "steps that are shorter than a text",
        {"ENABLE_CHUNKED_PREFILL": "0", "MAX_NUM_BATCHED_TOKENS": "512"},
        "set MAX_NUM_BATCHED_TOKENS=2048 or more",
    ),
    Pair(
        "more texts than tokens a step",
        {"MAX_NUM_SEQS": "512", "MAX_NUM_BATCHED_TOKENS": "256"},
        "set MAX_NUM_BATCHED_TOKENS=512 or more",
    ),
    Pair(
        "a cluster",
        {"DISTRIBUTED_EXECUTOR_BACKEND": "ray"},
        "leave DISTRIBUTED_EXECUTOR_BACKEND unset",
    ),
    Pair("a GPU that sleeps", {"ENABLE_SLEEP_MODE": "1"}, "Sleep mode is not supported"),
    Pair("a cache beside the GPU's", {"KV_OFFLOADING_SIZE": "1"}, "leave KV_OFFLOADING_SIZE unset"),
    Pair(
        "a connector that nobody has",
        {"KV_TRANSFER_CONFIG": '{"kv_connector": "Nope", "kv_role": "kv_both"}'},
        "Unsupported connector type",
    ),
    Pair(
        "a draft model that is not there",
        {**_DRAFT, "SPECULATIVE_MODEL": "/nope"},
        "/nope: neither a directory",
    ),
    Pair(
        "a draft model of nobody's",
        {**_DRAFT, "SPECULATIVE_MODEL": "org/none"},
        "org/none: not complete on the disk",
    ),
    Pair("a draft model, and no number", {"SPECULATIVE_MODEL": "<demo>"}, "NUM_SPECULATIVE_TOKENS"),
    Pair(
        "an adapter of too high a rank",
        {**_LORA, "LORA_MODULES": "sql=<rank64>"},
        "set MAX_LORA_RANK=64",
    ),
    Pair(
        "an adapter without its configuration",
        {**_LORA, "LORA_MODULES": "sql=<broken>"},
        "there is no adapter_config.json",
    ),
    Pair(
        "an adapter, not enabled", {"LORA_MODULES": "sql=<adapter>"}, "adapters need ENABLE_LORA=1"
    ),
    Pair(
        "a tokenizer that is not there", {"TOKENIZER_NAME": "/nope"}, "there is no such directory"
    ),
    Pair(
        "a part of a parser's name",
        {"ENABLE_AUTO_TOOL_CHOICE": "1", "TOOL_CALL_PARSER": "llama"},
        "did you mean llama3_json or llama4_json or llama4_pythonic?",
    ),
    Pair(
        "a format of weights whose package is missing",
        {"LOAD_FORMAT": "tensorizer"},
        "LOAD_FORMAT=tensorizer needs the package tensorizer, which is not installed",
    ),
    Pair(
        "weights in parts that are not there",
        {"LOAD_FORMAT": "sharded_state"},
        "there are no files model-rank-0-part-*.safetensors",
    ),
    Pair(
        "a hash whose package is missing",
        {"PREFIX_CACHING_HASH_ALGO": "xxhash"},
        "PREFIX_CACHING_HASH_ALGO=xxhash needs the package xxhash",
    ),
    Pair(
        "a launcher that is not there",
        {"DISTRIBUTED_EXECUTOR_BACKEND": "external_launcher"},
        "leave DISTRIBUTED_EXECUTOR_BACKEND unset",
    ),
    Pair(
        "positions that are scaled from nothing",
        {"HF_OVERRIDES": '{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}'},
        "KeyError: 'original_max_position_embeddings'",
    ),
    Pair(
        "parts of messages for a template that takes texts",
        {"CHAT_TEMPLATE_CONTENT_FORMAT": "openai"},
        'a first request is refused: can only concatenate str (not "list") to str',
    ),
    Pair(
        "a system prompt for a template that takes none",
        {
            "SYSTEM_PROMPT": "Be brief.",
            "CUSTOM_CHAT_TEMPLATE": "{% if messages[0].role == 'system' %}"
            "{{ raise_exception('System role not supported') }}{% endif %}"
            "{{ messages[0].content }}",
        },
        "a first request is refused: System role not supported",
    ),
    Pair("a seed below 0", {"SEED": "-1"}, "Seed must be between 0 and 2**32 - 1"),
    Pair("a cache for no text", {"NUM_GPU_BLOCKS_OVERRIDE": "1"}, "Cannot auto-fit max_model_len"),
    Pair(
        "a cache for less than one text",
        {"NUM_GPU_BLOCKS_OVERRIDE": "5", "MAX_MODEL_LEN": "2048"},
        "To serve at least one request with the model's max seq len (2048)",
    ),
    Pair(
        "a cache for a shorter text than the floor",
        {"NUM_GPU_BLOCKS_OVERRIDE": "5"},
        "The memory holds a context of 512 tokens for demo, less than MIN_MODEL_LEN=1024",
    ),
    Pair(
        "a cache for a shorter text than the model's",
        {"NUM_GPU_BLOCKS_OVERRIDE": "9", "MIN_MODEL_LEN": "1"},
    ),
    Pair("a cache larger than the machine", {"VLLM_CPU_KVCACHE_SPACE": "1000"}, "memory"),
    Pair("a directory that is not there", {"MODEL_NAME": "/nope"}, "there is no such directory"),
    Pair(
        "a model that was not downloaded",
        {"MODEL_NAME": "org/none"},
        "org/none: not complete on the disk",
    ),
    Pair("weights that are cut off", {"MODEL_NAME": "<cut>"}, "cut off", "incomplete metadata"),
    Pair("no weights", {"MODEL_NAME": "<weightless>"}, "weights"),
    Pair("a configuration that is no JSON", {"MODEL_NAME": "<shapeless>"}, "config"),
    Pair("an architecture that vLLM has dropped", {"MODEL_NAME": "<xverse>"}, "XverseForCausalLM"),
    Pair(
        "code that is not trusted",
        {"MODEL_NAME": "<foreign>"},
        "set TRUST_REMOTE_CODE=1 if you trust the repository",
    ),
    Pair("a model of speech", {"MODEL_NAME": "<speech>"}, "no route of the worker serves that"),
    Pair(
        "heads that can't share the hidden size",
        {"MODEL_NAME": "<odd heads>"},
        "not a multiple of the number of attention heads (3)",
    ),
)
