"""A process that runs a batch with vLLM's run_batch, timed from the started engine to the output.

python benchmarks/batch_parts/run_batch.py MODEL INPUT FOLDER
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import bench

from batch_parts import memory
from batch_parts.sides import MAX_MODEL_LEN, SLOTS, WARM_UP_LINES, WARM_UP_NAME, write_input


def arguments(model: str, source: str, folder: str) -> Any:
    from vllm.entrypoints.launchers.run_batch import make_arg_parser  # noqa: PLC0415 - slow
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415 - slow

    options = {
        "-i": source,
        "-o": f"{folder}/output.jsonl",
        "--model": model,
        "--dtype": "float32",
        "--distributed-executor-backend": "uni",
        "--max-model-len": MAX_MODEL_LEN,
        "--max-num-seqs": SLOTS,
    }
    words = [str(word) for pair in options.items() for word in pair]
    return make_arg_parser(FlexibleArgumentParser()).parse_args(
        [*words, "--enforce-eager", "--disable-log-stats"]
    )


async def main() -> None:
    from vllm.entrypoints.launchers import run_batch  # noqa: PLC0415 - slow
    from vllm.entrypoints.launchers.api_server.entry import (  # noqa: PLC0415 - slow
        build_async_engine_client,
    )

    args = arguments(*sys.argv[1:])
    async with build_async_engine_client(args) as engine:
        with tempfile.TemporaryDirectory() as folder:
            source = write_input(
                Path(folder) / "input.jsonl", WARM_UP_LINES, 16, names=WARM_UP_NAME
            )
            await run_batch.run_batch(engine, arguments(args.model, str(source), folder))
        before = memory.rss_mb()
        memory.reset_peak()
        bench.print_line("begun")
        start = time.perf_counter()
        await run_batch.run_batch(engine, args)
        seconds = time.perf_counter() - start
        bench.print_line("ended", seconds, memory.peak_mb() - before)


if __name__ == "__main__":
    asyncio.run(main())
