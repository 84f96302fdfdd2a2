"""Draws settings, and compares what the doctor says of them with what a start does.

    PYTHONPATH=src:tests .venv/bin/python -m fuzz.starts [--cases 150] [--seed 7]

One or two settings a case, with values that operators set, on the demo model. The status is 1 if
the doctor and a start disagree: about whether it comes up, or about which of the settings is wrong.
"""

import argparse
import random
import sys
from collections.abc import Iterator
from functools import partial

from support.processes.commands import SCRIPT, WORKER, run
from support.processes.side_by_side import side_by_side

# A job that every engine answers, whatever it can do.
MODELS = '{"input": {"route": "/v1/models"}}'
# Without those that are read when vLLM is imported, which happens once for all cases.
VALUES: dict[str, tuple[str, ...]] = {
    "ASYNC_SCHEDULING": ("0", "1"),
    "ATTENTION_BACKEND": ("TORCH_SDPA", "CPU_ATTN", "FLASH_ATTN", "TRITON_ATTN"),
    "BLOCK_SIZE": ("1", "16", "32", "48", "128", "1024"),
    "CHAT_TEMPLATE_CONTENT_FORMAT": ("string", "openai", "text"),
    "CONFIG_FORMAT": ("hf", "mistral"),
    "CPU_OFFLOAD_GB": ("1", "-1"),
    "DATA_PARALLEL_SIZE": ("2",),
    "DEFAULT_CHAT_TEMPLATE_KWARGS": ('{"enable_thinking": false}', "[]"),
    "DISABLE_LOG_STATS": ("1",),
    "DISTRIBUTED_EXECUTOR_BACKEND": ("mp", "uni", "external_launcher"),
    "DTYPE": ("auto", "float16", "bfloat16", "half", "float32"),
    "ENABLE_CHUNKED_PREFILL": ("0", "1"),
    "ENABLE_EXPERT_PARALLEL": ("1",),
    "ENABLE_LORA": ("1",),
    "ENABLE_PREFIX_CACHING": ("0", "1"),
    "ENFORCE_EAGER": ("1",),
    "GENERATION_CONFIG": ("auto", "vllm", "/nope"),
    "GPU_MEMORY_UTILIZATION": ("0.01", "0.5", "1.5"),
    "HF_OVERRIDES": (
        '{"num_hidden_layers": 1}',
        '{"max_position_embeddings": 1048576}',
        '{"architectures": ["Qwen2ForCausalLM"]}',
        '{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}',
        '{"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}',
        '{"vocab_size": 100}',
    ),
    "KV_CACHE_DTYPE": ("auto", "fp8", "fp8_e5m2", "bfloat16", "int8_per_token_head"),
    "KV_CACHE_MEMORY_BYTES": ("1K", "1M", "300M", "1T"),
    "LOAD_FORMAT": (
        "auto",
        "dummy",
        "fastsafetensors",
        "npcache",
        "pt",
        "runai_streamer",
        "safetensors",
        "sharded_state",
    ),
    "LOGPROBS_MODE": ("raw_logits", "processed_logprobs"),
    "LONG_PREFILL_TOKEN_THRESHOLD": ("16", "4096"),
    "MAX_CPU_LORAS": ("1", "8"),
    "MAX_LOGPROBS": ("0", "-1", "-2"),
    "MAX_LORAS": ("1", "4"),
    "MAX_LORA_RANK": ("1", "256", "512"),
    "MAX_MODEL_LEN": ("1", "16", "2048", "2049", "1k", "auto"),
    "MAX_NUM_BATCHED_TOKENS": ("1", "64", "8192"),
    "MAX_NUM_PARTIAL_PREFILLS": ("1", "2"),
    "MAX_NUM_SEQS": ("1", "64", "1000"),
    "MIN_MODEL_LEN": ("1", "2048", "4096"),
    "MODEL_IMPL": ("auto", "vllm", "transformers", "terratorch"),
    "NUM_GPU_BLOCKS_OVERRIDE": ("1", "2", "9", "17", "1000"),
    "OPTIMIZATION_LEVEL": ("0", "3"),
    "OVERRIDE_GENERATION_CONFIG": ('{"temperature": 0.5}', "{}"),
    "PIPELINE_PARALLEL_SIZE": ("2",),
    "POOLER_CONFIG": ('{"pooling_type": "MEAN"}', '{"pooling_type": "SUM"}'),
    "PREFIX_CACHING_HASH_ALGO": ("sha256", "xxhash", "builtin"),
    "QUANTIZATION": ("awq", "bitsandbytes", "fp8", "gptq_marlin", "mxfp4", "torchao"),
    "REASONING_PARSER": ("deepseek_r1", "gpt_oss", "mistral", "openai_gptoss", "qwen3"),
    "RUNNER": ("auto", "draft", "generate", "pooling"),
    "CONVERT": ("none", "embed", "classify"),
    "SCHEDULING_POLICY": ("fcfs", "priority"),
    "SEED": ("0", "-1", "99999999999"),
    "SKIP_TOKENIZER_INIT": ("1",),
    "SPECULATIVE_CONFIG": (
        '{"method": "ngram", "num_speculative_tokens": 2}',
        '{"method": "eagle", "num_speculative_tokens": 2}',
        '{"method": "mtp", "num_speculative_tokens": 2}',
        '{"method": "suffix"}',
    ),
    "STREAM_INTERVAL": ("0", "4"),
    "STRUCTURED_OUTPUTS_CONFIG": (
        '{"backend": "guidance"}',
        '{"backend": "outlines"}',
        '{"backend": "lm-format-enforcer"}',
    ),
    "TENSOR_PARALLEL_SIZE": ("1", "2"),
    "TOKENIZER_MODE": ("auto", "slow", "mistral", "hf", "deepseek_v32"),
    "TOOL_CALL_PARSER": ("hermes", "mistral", "openai", "llama3_json"),
    "ENABLE_AUTO_TOOL_CHOICE": ("1",),
    "TRUST_REMOTE_CODE": ("1",),
}

Case = dict[str, str]


def draw(cases: int, seed: int) -> Iterator[Case]:
    """Yield cases, none of them twice."""
    chosen = random.Random(seed)
    seen = set[tuple[tuple[str, str], ...]]()
    while len(seen) < cases:
        names = sorted(chosen.sample([*VALUES], chosen.choice((1, 2))))
        case = {name: chosen.choice(VALUES[name]) for name in names}
        if (key := tuple(case.items())) not in seen:
            seen.add(key)
            yield case


def disagreement(case: Case) -> str:
    """Start a worker, and ask the doctor; return how they differ, empty if they don't."""
    started = run({**WORKER, **case}, SCRIPT, "--test_input", MODELS)
    checked = run({**WORKER, **case}, SCRIPT, "--check")
    if "Traceback" in checked.stderr:
        return f"the doctor: {checked.stderr[-1_000:]}"
    end = (started.stderr.splitlines() or [""])[-1]
    failures = " ".join(checked.stdout.split())
    if (started.returncode == 0) is not (checked.returncode == 0):
        return f"start: {started.returncode} {end[:400]}; doctor: {failures[-600:]}"
    blamed = {name for name in case if name in end}
    if started.returncode and blamed and not any(name in failures for name in blamed):
        return f"the start names {', '.join(blamed)}: {end[:400]}; doctor: {failures[-600:]}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz.starts", description=__doc__)
    parser.add_argument("--cases", type=int, default=150)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    cases = {str(case): case for case in draw(args.cases, args.seed)}
    wrong = 0
    with side_by_side({name: partial(disagreement, case) for name, case in cases.items()}) as ended:
        for name in cases:
            if differs := ended(name):
                wrong += 1
                sys.stdout.write(f"{name}\n    {differs}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{len(cases)} starts, the doctor disagrees with {wrong}\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
