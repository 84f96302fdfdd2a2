"""Compares the throughput of `LLM.generate` with that of vLLM's own, the same prompts in each.

    python benchmarks/offline.py [--rounds 3] [--prompts 512] [--only large] [--model .models/demo]

Two models: the demo model, whose engine steps are over before Python has turned round, and one
with random weights whose steps take more than 5 ms, as those of any real model do. Each side runs
in a process of its own (this file again), alternating; the figures are medians of their ratios.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SIDES = ("worker", "vllm")
RESULT = "result "
GOALS = {"demo": 0.7, "large": 0.95}
TOKENS = 32  # of each answer
# The same for both; the defaults that the worker chooses on a CPU.
ENGINE: dict[str, Any] = {
    "max_model_len": 512,
    "dtype": "float32",
    "enforce_eager": True,
    "distributed_executor_backend": "uni",
}
ENVIRON = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # What the worker exports itself: vLLM keeps the executor in the core, which is the fairer side.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
# Wide enough that a step takes more than 5 ms.
LARGE = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6}
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 64}


def make_large(demo: Path, directory: Path) -> None:
    """Copy the demo model without its weights, which vLLM's dummy loader invents."""
    for file in demo.iterdir():
        if file.suffix in (".json", ".jinja"):
            (directory / file.name).write_bytes(file.read_bytes())
    config = json.loads((demo / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **LARGE, **HEADS}))


def probe(side: str, model: str, load_format: str, prompts: int) -> None:
    """Be one side: warm up, answer all prompts, and print the seconds and the tokens."""
    if side == "worker":
        sys.path.insert(0, str(ROOT / "src"))
        from worker.offline import LLM  # noqa: PLC0415 - only this side's
    else:
        from vllm import LLM  # type: ignore[no-redef]  # noqa: PLC0415 - likewise
    from vllm import SamplingParams  # noqa: PLC0415 - takes seconds

    rng = random.Random(7)
    texts = [
        " ".join(rng.choices("a small worker counts tokens".split(), k=8)) for _ in range(prompts)
    ]
    llm = LLM(model=model, load_format=load_format, **ENGINE)
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    llm.generate(texts[:16], params, use_tqdm=False)
    start = time.perf_counter()
    outputs = llm.generate(texts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    print(RESULT + json.dumps({"seconds": seconds, "tokens": tokens}), flush=True)
    signal.pause()


def throughput(side: str, model: Path, load_format: str, prompts: int) -> float:
    command = [sys.executable, __file__, "--probe", side, "--model", str(model)]
    command += ["--load-format", load_format, "--prompts", str(prompts)]
    environ = {**os.environ, **ENVIRON}
    process = subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, start_new_session=True, text=True
    )
    assert process.stdout is not None
    try:
        told = next(line for line in process.stdout if line.startswith(RESULT))
    finally:
        # The whole session: neither side's orderly end is measured, and the engine outlives it.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    result = json.loads(told.removeprefix(RESULT))
    return float(result["tokens"] / result["seconds"])


def compare(name: str, model: Path, load_format: str, args: argparse.Namespace) -> bool:
    ratios: list[float] = []
    speeds: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(args.rounds):
        for side in SIDES:
            speeds[side].append(throughput(side, model, load_format, args.prompts))
        ratios.append(speeds["worker"][-1] / speeds["vllm"][-1])
    ratio = statistics.median(ratios)
    ours, theirs = (statistics.median(speeds[side]) for side in SIDES)
    print(
        f"{name:6} {ours:8,.0f} tokens/s, vLLM's own {theirs:8,.0f}: {ratio:.2f} x "
        f"({', '.join(f'{one:.2f}' for one in ratios)}; goal {GOALS[name]})"
    )
    return ratio >= GOALS[name]


def main(args: argparse.Namespace) -> int:
    demo = Path(args.model)
    with tempfile.TemporaryDirectory() as folder:
        make_large(demo, Path(folder))
        models = {"demo": (demo, "auto"), "large": (Path(folder), "dummy")}
        good = [compare(name, *models[name], args) for name in models if args.only in (None, name)]
    return 0 if all(good) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--only", choices=GOALS, help="one of the two models")
    parser.add_argument("--model", default=str(ROOT / ".models" / "demo"))
    parser.add_argument("--probe", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--load-format", default="auto", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.probe:
        probe(arguments.probe, arguments.model, arguments.load_format, arguments.prompts)
    else:
        sys.exit(main(arguments))
