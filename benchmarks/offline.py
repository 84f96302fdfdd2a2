"""Compares the throughput of the worker's `LLM.generate` with vLLM's own, for the same prompts.

    python benchmarks/offline.py [--rounds 3] [--prompts 512] [--only large] [--model .models/demo]
        [--json FILE]

There are two models: the demo model, whose engine steps take almost no time, and one with random
weights whose steps take more than 5 ms, like those of any real model. The sides run in separate
processes (this file) and alternate; the figures are medians of their ratios.

prefix: the worker alone, on the large model, with long prompts and short answers. It compares
prompts that begin with one of eight texts, in mixed order, with the same number of prompts that
have no common beginning.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import bench

from proof.measure import loads
from proof.measure.processes import next_line, print_line, run_process

SIDES = ("worker", "vllm")
GOALS = {"demo": 0.7, "large": 0.95}  # relative to vLLM's own throughput
PREFIXES = 8
PREFIX_WORDS = 200
# For both sides: the worker's own choices on a CPU.
ENGINE: dict[str, Any] = {
    "max_model_len": 1024,
    "dtype": "float32",
    "enforce_eager": True,
    "distributed_executor_backend": "uni",
}
ENVIRON = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # The worker exports this, so that vLLM's executor runs in the core on both sides.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
# Wide enough that a step takes more than 5 ms.
LARGE = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6}
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 64}


def make_large_model(demo: Path, directory: Path) -> None:
    """Copy the demo model's files with larger layers and no weights; vLLM makes up random ones."""
    for file in demo.iterdir():
        if file.suffix in (".json", ".jinja"):
            (directory / file.name).write_bytes(file.read_bytes())
    config = json.loads((demo / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **LARGE, **HEADS}))


@dataclass(frozen=True)
class Work:
    """Prompts for one side.

    Args:
        prompts: Number of prompts.
        texts: Kind of prompts: plain (eight words), shared (each behind one of eight long texts) or
            distinct (each behind its own long text).
        tokens: Number of tokens of each answer.
    """

    prompts: int
    texts: str = "plain"
    tokens: int = 32

    def build_prompts(self) -> list[str]:
        plain = loads.prompts(self.prompts)
        if self.texts == "plain":
            return plain
        rng = random.Random(8)
        count = PREFIXES if self.texts == "shared" else self.prompts
        words = "a small worker counts tokens".split()
        prefixes = [" ".join(rng.choices(words, k=PREFIX_WORDS)) for _ in range(count)]
        prompts = [f"{prefixes[n % count]} {text}" for n, text in enumerate(plain)]
        rng.shuffle(prompts)
        return prompts


def run_side(side: str, model: str, load_format: str, work: Work) -> None:
    """Run one side: warm up, answer all prompts, and print the tokens and the seconds."""
    if side == "worker":
        from worker.offline import LLM  # noqa: PLC0415 - only for this side
    else:
        from vllm import LLM  # type: ignore[no-redef]  # noqa: PLC0415 - only for this side
    from vllm import SamplingParams  # noqa: PLC0415 - takes seconds

    texts = work.build_prompts()
    llm = LLM(model=model, load_format=load_format, **ENGINE)
    params = SamplingParams(temperature=0, max_tokens=work.tokens, ignore_eos=True)
    llm.generate(loads.prompts(16), params, use_tqdm=False)
    start = time.perf_counter()
    outputs = llm.generate(texts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    print_line("result", tokens, seconds)
    signal.pause()


async def throughput(side: str, model: Path, load_format: str, work: Work) -> float:
    """Run one side; return its tokens per second."""
    command = [sys.executable, __file__, "--side", side, "--model", str(model)]
    command += ["--load-format", load_format, "--work", json.dumps(asdict(work))]
    async with run_process(command, ENVIRON) as process:
        _, tokens, seconds = await next_line(process, "result ")
    return int(tokens) / float(seconds)


Speeds = dict[str, list[float]]


async def compare_sides(
    name: str, model: Path, load_format: str, args: argparse.Namespace
) -> tuple[bool, Speeds]:
    """Measure both sides and print their figures; return whether the goal is met, and speeds."""
    ratios: list[float] = []
    speeds: Speeds = {side: [] for side in SIDES}
    for _ in range(args.rounds):
        for side in SIDES:
            speeds[side].append(await throughput(side, model, load_format, Work(args.prompts)))
        ratios.append(speeds["worker"][-1] / speeds["vllm"][-1])
    ratio = statistics.median(ratios)
    ours, theirs = (statistics.median(speeds[side]) for side in SIDES)
    print(
        f"{name:6} {ours:8,.0f} tokens/s, vLLM's own {theirs:8,.0f}: {ratio:.2f} x "
        f"({', '.join(f'{value:.2f}' for value in ratios)}; goal {GOALS[name]})"
    )
    return ratio >= GOALS[name], speeds


async def measure_prefixes(model: Path, args: argparse.Namespace) -> Speeds:
    """Measure prompts per second, with and without common beginnings."""
    tokens = 4
    speeds: Speeds = {"shared": [], "distinct": []}
    for _ in range(args.rounds):
        for texts, values in speeds.items():
            work = Work(args.prompts // 2, texts, tokens)
            values.append(await throughput("worker", model, "dummy", work) / tokens)
    shared, distinct = map(statistics.median, speeds.values())
    print(
        f"prefix {shared:8,.0f} prompts/s with {PREFIXES} beginnings, with all their own "
        f"{distinct:8,.0f}: {shared / distinct:.2f} x"
    )
    return speeds


async def main(args: argparse.Namespace) -> int:
    speeds_by_part: dict[str, Speeds] = {}
    all_goals_met = True
    with tempfile.TemporaryDirectory() as folder:
        make_large_model(args.model, Path(folder))
        models = {"demo": (args.model, "auto"), "large": (Path(folder), "dummy")}
        for name in (name for name in models if args.only in (None, name)):
            is_met, speeds_by_part[name] = await compare_sides(name, *models[name], args)
            all_goals_met &= is_met
        if args.only in (None, "prefix"):
            speeds_by_part["prefix"] = await measure_prefixes(Path(folder), args)
    bench.write_json(args.json, speeds_by_part)
    return 0 if all_goals_met else 1


if __name__ == "__main__":
    parser = bench.options(__doc__, writes_json=True)
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--only", choices=[*GOALS, "prefix"], help="run only this part")
    parser.add_argument("--model", type=bench.path, default=bench.DEMO_MODEL)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--load-format", default="auto", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        work = Work(**arguments.work)
        run_side(arguments.side, str(arguments.model), arguments.load_format, work)
    else:
        sys.exit(asyncio.run(main(arguments)))
