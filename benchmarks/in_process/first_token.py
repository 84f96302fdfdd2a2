"""Measures the time that a request takes in the worker's process before its first token, by stage.

    PYTHONPATH=src:tests:benchmarks python benchmarks/in_process/first_token.py [--tokens 2000]

The stages of a streamed chat are called one after another, with the demo model's engine. Prints the
median of each in microseconds. Only "whole" has the hand-overs between the threads and with the
core, and the first step of the model.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from gpu_load.loads import NUMBER, Load, chat_body, job_input
from support import ROOT
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.v1.serial_utils import MsgpackEncoder

from worker import dialects
from worker.app import Worker
from worker.bridge import Stream
from worker.dialects.openai.forward import prepare_body
from worker.dialects.table import find_route
from worker.engine.options import Options
from worker.engine.run.requests.limits import check_bad_words, limit_texts
from worker.engine.run.server import _encode_json
from worker.engine.start import Start, launch
from worker.job import OpenAIJob
from worker.settings import Settings

MODEL = ROOT / ".models" / "demo"
# The demo model's own context.
CONTEXT = 2048
COUNT = 300

Stage = Callable[[Any], Any]


class Stages:
    """The stages of one request; each gets the result of the previous one that it needs."""

    def __init__(self, engine: Any, settings: Settings, job: bytes) -> None:
        self.engine, self.settings, self.job = engine, settings, job
        self.serving = engine._server.state.openai_serving_chat
        self.client = engine._client
        self.encoder = MsgpackEncoder()

    def run(self) -> dict[str, tuple[Stage, bool]]:
        """Return the stages in their order, and whether the worker's own code runs in them."""
        return {
            "job: read JSON": (lambda _: json.loads(self.job)[0]["input"], True),
            "job: check and validate": (dialects.parse_input, True),
            "body: check, translate": (self._prepare, True),
            "body: limits of texts, media": (self._limit, True),
            "body: write JSON for vLLM": (_encode_json, True),
            "vLLM: read JSON": (json.loads, False),
            "vLLM: validate": (ChatCompletionRequest.model_validate, False),
            "vLLM: template and tokens": (self._render, False),
            "vLLM: parameters, request for the core": (self._process, False),
            "vLLM: write msgpack": (self.encoder.encode, False),
        }

    def _prepare(self, job: OpenAIJob) -> dict[str, Any]:
        route = find_route(job)
        assert route is not None
        body, _ = prepare_body(job, route, self.engine, "request", self.settings)
        return {**body, "shape": route.shape}

    async def _limit(self, body: dict[str, Any]) -> dict[str, Any]:
        shape = body.pop("shape")
        limited = limit_texts(self.client, body, shape)
        limited, _ = await self.engine._server.media.inline_media(limited, shape.text_keys)
        check_bad_words(limited.get("bad_words"), self.client.renderer.tokenizer)
        return dict(limited)

    async def _render(self, request: Any) -> Any:
        _, prompts = await self.serving.render_chat_request(request)
        return request, prompts[0]

    def _process(self, rendered: Any) -> Any:
        request, prompt = rendered
        params = request.to_sampling_params(request.max_tokens, {})
        return self.client.input_processor.process_inputs(
            "request", prompt, params, supported_tasks=("generate",)
        )


async def measure(stages: Stages) -> dict[str, float]:
    """Return the median seconds of each stage."""
    seconds: dict[str, list[float]] = {}
    for _ in range(COUNT):
        value: Any = None
        for name, (stage, _own) in stages.run().items():
            began = time.perf_counter()
            value = stage(value)
            if isinstance(value, Awaitable):
                value = await value
            seconds.setdefault(name, []).append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in seconds.items()}


async def measure_stream(loop: asyncio.AbstractEventLoop) -> float:
    """Return the median seconds of the hand-over to the engine's thread and back."""

    async def one() -> AsyncGenerator[int, None]:
        yield 1

    times = []
    for _ in range(COUNT):
        began = time.perf_counter()
        stream = Stream(one, loop)
        while await stream.read() is not None:
            pass
        times.append(time.perf_counter() - began)
    return statistics.median(times)


async def measure_whole(worker: Worker, job: bytes) -> float:
    """Return the median seconds from a job to its first yield."""
    times = []
    for number in range(COUNT // 3):
        began = time.perf_counter()
        payload = {"id": str(number), "input": json.loads(job)[0]["input"]}
        async for _ in worker.handle(payload):
            times.append(time.perf_counter() - began)
            break
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2000, help="tokens of the prompt, to 2,040")
    tokens = parser.parse_args().tokens
    settings = Settings.from_env({"MODEL_NAME": str(MODEL)})
    options = Options()
    values = {"MODEL": str(MODEL), "MAX_MODEL_LEN": str(CONTEXT), "SERVED_MODEL_NAME": "demo"}
    engine = options.parse_engine_settings(values).arguments
    load = Load(1, 50, tokens=1, common_tokens=max(0, tokens - 100))
    body = chat_body(load, "demo", MODEL)
    del body["vllm_xargs"]
    payload = json.dumps([{"id": "1", "input": job_input(load, body)}])
    job = payload.replace(NUMBER, "1").encode()
    plan = Start(settings, engines=[engine], machine=options.machine)
    with launch.launch_engines(plan) as engines:
        running: Any = engines.main_engine
        stages = Stages(running, settings, job)
        found = asyncio.run_coroutine_threadsafe(measure(stages), running.loop).result()
        hand_over = asyncio.run(measure_stream(running.loop))
        whole = asyncio.run(measure_whole(Worker(engines, settings), job))
    print(f"a chat of {len(job):,} bytes, {tokens:,} tokens:")
    for name, (_, is_own) in stages.run().items():
        print(f"  {name:40}{1e6 * found[name]:8.0f} us{'  (the worker)' if is_own else ''}")
    print(f"  {'threads: to the engine and back':40}{1e6 * hand_over:8.0f} us  (the worker)")
    print(f"  {'whole, with the core':40}{1e6 * whole:8.0f} us")


if __name__ == "__main__":
    main()
