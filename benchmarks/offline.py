"""Measures the throughput of `LLM.generate` for prompts with and without common beginnings.

    python benchmarks/offline.py [--rounds 3] [--prompts 256] [--model .models/demo] [--json FILE]

The prompts are long, and the answers short. The prompts of one side begin with one of eight texts,
in mixed order; those of the other have no common beginning. The model has random weights, and steps
of more than 5 ms, like those of any real model. The sides run in separate processes (this file) and
alternate.
"""

import argparse
import asyncio
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import bench

from proof.measure import loads
from proof.measure.processes import next_line, print_line, run_process

SIDES = ("shared", "distinct")
PREFIXES = 8
PREFIX_WORDS = 200
TOKENS = 4
# The worker's own choices on a CPU.
ENGINE: dict[str, Any] = {"max_model_len": 1024, "dtype": "float32", "load_format": "dummy"}
ENVIRON = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
# Wide enough that a step takes more than 5 ms.
LARGE = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6}
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 64}


def make_model(demo: Path, directory: Path) -> None:
    """Copy the demo model's files with larger layers and no weights; vLLM makes up random ones."""
    for file in demo.iterdir():
        if file.suffix in (".json", ".jinja"):
            (directory / file.name).write_bytes(file.read_bytes())
    config = json.loads((demo / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **LARGE, **HEADS}))


def make_prompts(side: str, prompts: int) -> list[str]:
    rng = random.Random(8)
    count = PREFIXES if side == "shared" else prompts
    words = "a small worker counts tokens".split()
    prefixes = [" ".join(rng.choices(words, k=PREFIX_WORDS)) for _ in range(count)]
    texts = [f"{prefixes[n % count]} {text}" for n, text in enumerate(loads.prompts(prompts))]
    rng.shuffle(texts)
    return texts


def run_side(side: str, model: str, prompts: int) -> None:
    """Warm up, answer all prompts, and print the seconds."""
    from vllm import SamplingParams  # noqa: PLC0415 - takes seconds

    from worker.offline import LLM  # noqa: PLC0415 - takes seconds

    llm = LLM(model=model, **ENGINE)
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    llm.generate(loads.prompts(16), params, use_tqdm=False)
    texts = make_prompts(side, prompts)
    start = time.perf_counter()
    llm.generate(texts, params, use_tqdm=False)
    print_line("result", time.perf_counter() - start)
    signal.pause()


async def main(args: argparse.Namespace) -> None:
    speeds: dict[str, list[float]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        make_model(args.model, Path(folder))
        for _ in range(args.rounds):
            for side in SIDES:
                command = [sys.executable, __file__, "--side", side]
                command += ["--model", folder, "--prompts", str(args.prompts)]
                async with run_process(command, ENVIRON) as process:
                    _, seconds = await next_line(process, "result ")
                speeds[side].append(args.prompts / float(seconds))
    shared, distinct = map(statistics.median, speeds.values())
    print(
        f"{shared:,.0f} prompts/s with {PREFIXES} beginnings, with all their own "
        f"{distinct:,.0f}: {shared / distinct:.2f} x"
    )
    bench.write_json(args.json, {"prefix": speeds})


if __name__ == "__main__":
    parser = bench.options(__doc__, writes_json=True)
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--model", type=bench.path, default=bench.DEMO_MODEL)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        run_side(arguments.side, str(arguments.model), arguments.prompts)
    else:
        asyncio.run(main(arguments))
