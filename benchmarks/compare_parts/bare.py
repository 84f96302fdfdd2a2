"""A child process with vLLM's engine, called without a server. It is not run by hand.

It prints "started". For each line of its input, which is a load, it prints the figures.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict
from typing import Any

import bench
import uvloop

from proof.measure import http_load
from proof.measure.figures import Answer, Load, figures


async def main(engine_args: dict[str, Any]) -> None:
    # Imported here because vLLM reads variables at import that the parent sets.
    from vllm import SamplingParams  # noqa: PLC0415 - see above
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415 - see above
    from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415 - see above
    from vllm.v1.engine.async_llm import AsyncLLM  # noqa: PLC0415 - see above

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_args))
    tokenizer = engine.renderer.tokenizer

    async def answer(number: int, prompt: str, load: Load) -> Answer:
        kind = RequestOutputKind.DELTA if load.stream else RequestOutputKind.FINAL_ONLY
        params = SamplingParams(
            max_tokens=load.tokens, ignore_eos=True, temperature=0, output_kind=kind
        )
        result = Answer(time.perf_counter())
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        async for output in engine.generate(text, params, f"bare-{number}-{time.monotonic()}"):
            result.arrivals.append((time.perf_counter(), 1))
            result.tokens += len(output.outputs[0].token_ids)
        result.ended = time.perf_counter()
        return result

    await answer(0, "Hi", Load(1, 1, 1))
    bench.print_line("started")
    while line := await asyncio.to_thread(sys.stdin.readline):
        load = Load(**json.loads(line))
        waiting = iter(enumerate(http_load.prompts(load.requests)))
        answers: list[Answer] = []

        async def call(load: Load = load, waiting: Any = waiting, results: Any = answers) -> None:
            for number, prompt in waiting:
                results.append(await answer(number, prompt, load))

        await asyncio.gather(*(call() for _ in range(load.callers)))
        output = [asdict(figures(answers)), answers[0].since_sent()]
        bench.print_line("measured", json.dumps(output, separators=(",", ":")))
    engine.shutdown()


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
