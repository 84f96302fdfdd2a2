"""A child: vLLM's engine without a server, called in its own process. Not run by hand.

It prints "started"; for each line of its input, a load, it prints its figures.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict
from typing import Any

import bench
import uvloop

from compare_parts.figures import Answer, Load, figures


async def main(engine_args: dict[str, Any]) -> None:
    # After the variables that the parent sets: vLLM reads them when it is imported.
    from vllm import SamplingParams  # noqa: PLC0415 - see above
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415 - likewise
    from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415 - likewise
    from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415 - likewise

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_args))
    tokenizer = engine.renderer.tokenizer

    async def answer(number: int, prompt: str, load: Load) -> Answer:
        kind = RequestOutputKind.DELTA if load.stream else RequestOutputKind.FINAL_ONLY
        params = SamplingParams(
            max_tokens=load.tokens, ignore_eos=True, temperature=0, output_kind=kind
        )
        found = Answer(time.perf_counter())
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        async for output in engine.generate(text, params, f"bare-{number}-{time.monotonic()}"):
            found.arrivals.append((time.perf_counter(), 1))
            found.tokens += len(output.outputs[0].token_ids)
        found.ended = time.perf_counter()
        return found

    await answer(0, "Hi", Load(1, 1, 1))
    bench.print_line("started")
    while line := await asyncio.to_thread(sys.stdin.readline):
        load = Load(**json.loads(line))
        waiting = iter(enumerate(bench.prompts(load.requests)))
        answers: list[Answer] = []

        async def call(load: Load = load, waiting: Any = waiting, ended: Any = answers) -> None:
            for number, prompt in waiting:
                ended.append(await answer(number, prompt, load))

        await asyncio.gather(*(call() for _ in range(load.callers)))
        found = [asdict(figures(answers)), answers[0].since_sent()]
        bench.print_line("measured", json.dumps(found, separators=(",", ":")))
    engine.shutdown()


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
