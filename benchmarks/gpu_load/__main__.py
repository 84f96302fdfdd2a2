"""Compares the worker with vLLM's own server under the load of a GPU, on a machine without one.

    PYTHONPATH=benchmarks python -m gpu_load [--rounds 3] [--json FILE] [--loads LOAD ...]
        [--only worker server rust]
    PYTHONPATH=benchmarks python -m gpu_load --read FILE [FILE ...]

Only the forward pass is simulated (`core.py`): a step of the core takes as long as a GPU would, by
the clock, and its tokens are written in advance. Everything else is real, on both sides: vLLM's
scheduler, its cache of blocks and its messages, tokenizers, parsers, and the whole front, which is
the worker or vLLM's server (`--only rust`: with its front end in Rust, see `compare.py`). The
callers are a process that does little for each token. The worker gets jobs from it and posts chunks
to it; vLLM's server gets requests.

Pace is the tokens per second of a stream, relative to the nominal pace of the core. If a front
keeps it, its callers wait only for the GPU. The ceiling is 64 streams of 500 tokens/s, which take a
whole CPU core of vLLM's server. The prompts have 2,000 tokens, most of them in common, and those of
short requests 100. For raw loads, the worker gets raw jobs, and the others chats. After each load,
the streams are cancelled. A round takes about 10 minutes.
"""

import argparse
from collections.abc import Sequence

import bench
from compare_parts import command
from compare_parts.sides import parse_side

from gpu_load.loads import LOADS, WARM_UP
from gpu_load.rows import table
from gpu_load.sides import CONDITIONS, SIDES, StartSide
from proof.measure.comparison import Comparison, Round


async def measure(start_side: StartSide, arguments: argparse.Namespace) -> Round:
    """Start a side, and measure it with all loads."""
    loads: Sequence[str] = arguments.loads
    async with start_side(arguments.model) as side:
        await side.run(WARM_UP)
        return Round({name: await side.run(LOADS[name]) for name in loads}, arrivals=[])


def compare(arguments: argparse.Namespace) -> Comparison:
    machine = bench.machine()
    rounds = command.measure_rounds(arguments, lambda name: measure(SIDES[name], arguments))
    return Comparison([machine], arguments.model.name, CONDITIONS.title, rounds, others=[])


if __name__ == "__main__":
    parser = command.options(__doc__, SIDES, ("worker", "server"), parse_side)
    parser.add_argument("--loads", nargs="+", choices=tuple(LOADS), default=list(LOADS))
    command.run(parser.parse_args(), compare, table)
