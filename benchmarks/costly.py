"""Measures other requests next to the costliest accepted request of each parameter.

    python benchmarks/costly.py [--seconds 6] [--only n logprobs] [--url http://127.0.0.1:8000]

A parameter that costs time in each step of the engine slows all requests. For each of them, a
caller with 4 tokens per request is measured next to a request with the largest accepted values,
which starts again whenever it ends. Columns: milliseconds of an engine step (from the counter of
iterations in vLLM's metrics); median and maximum of the caller's milliseconds; and how often the
costly request was answered or refused. The row "alone" is the caller without any other request, and
"n" is the most choices that can run, which most other rows contain. The numbers hold for the model:
a larger one takes longer for a step, and the parameters take as long.

The server is one with the demo model, or any at --url, such as an older version of the worker.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import bench
from endpoint import serve

COMPLETIONS, METRICS = "/v1/completions", "/metrics"
STEPS = "vllm:iteration_tokens_total_count"
# Choices that run concurrently next to the caller: vLLM's default for the slots on a CPU is 128.
CHOICES = 112
SHORT = {"prompt": "Hi", "max_tokens": 4, "ignore_eos": True}
LONG = {"prompt": "x", "max_tokens": 1_900, "ignore_eos": True}
WORDS = [f"w{number}" for number in range(64)]
IDS = [*range(40, 340)]
PENALTIES = {"presence_penalty": 1, "repetition_penalty": 1.5}
# Tokens of the demo model with a part of a character, which are decoded with those before.
BYTES = [*range(98, 192), *range(226, 260)]
# Tokens 68 and 69, a and b, which repeat, but not as often as the detection requires.
NEARLY_REPEATED = {
    "structured_outputs": {"regex": "(a{299}b){7}"},
    "logit_bias": {"68": 60, "69": 60},
}


def regex(expression: str) -> dict[str, Any]:
    return {**NEARLY_REPEATED, "structured_outputs": {"regex": expression}}


def detection(largest: int, smallest: int, count: int, expression: str) -> dict[str, Any]:
    fields = {"max_pattern_size": largest, "min_pattern_size": smallest, "min_count": count}
    return {**regex(expression), "repetition_detection": fields}


# Comparisons of a token: 49,536, and 2,268.
LARGE_DETECTION = detection(256, 128, 3, "(a{299}b){7}")
SMALL_DETECTION = detection(43, 20, 4, "(a{59}b){31}")


# Rows by name: the parameters of the costly request, and the number of such requests.
ROWS: dict[str, tuple[dict[str, Any], int]] = {
    "alone": ({}, 0),
    "1 choice": ({}, 1),
    "n": ({"n": CHOICES}, 1),
    "n 256": ({"n": 256}, 1),
    "best_of": ({"best_of": CHOICES}, 1),
    "a beam of 10": ({"n": 10, "use_beam_search": True}, 1),
    "logprobs, 1 choice": ({"logprobs": 20, "stream": True}, 1),
    "n, logprobs": ({"n": CHOICES, "logprobs": 8, "stream": True}, 1),
    "n, logprobs, 2 requests": ({"n": 48, "logprobs": 20, "stream": True}, 2),
    "logprob_token_ids": ({"logprobs": 1, "logprob_token_ids": IDS[:128], "stream": True}, 1),
    "logprob_token_ids of bytes": (
        {"logprobs": 1, "logprob_token_ids": BYTES, "allowed_token_ids": BYTES, "stream": True},
        1,
    ),
    "prompt_logprobs": (
        {"n": 2, "prompt_logprobs": 15, "prompt": "five " * 380, "max_tokens": 1},
        1,
    ),
    "penalties": ({"n": CHOICES, **PENALTIES, "frequency_penalty": 1}, 1),
    "bad_words": ({"n": CHOICES, "bad_words": WORDS}, 1),
    "stop": ({"n": CHOICES, "stop": [word + "?" * 252 for word in WORDS[:4]]}, 1),
    "stop_token_ids, min_tokens": (
        {"n": CHOICES, "stop_token_ids": IDS[:64], "min_tokens": 1_900},
        1,
    ),
    "logit_bias": ({"n": CHOICES, "logit_bias": {str(token): -1 for token in IDS}}, 1),
    "allowed_token_ids": ({"n": CHOICES, "allowed_token_ids": IDS}, 1),
    "structured_outputs": ({"n": CHOICES, **NEARLY_REPEATED}, 1),
    "a regex that takes long": (regex("((a|b|ab|ba){1,30}){1,30}"), 1),
    "the same, n 112": ({"n": CHOICES, **regex("((a|b|ab|ba){1,30}){1,30}")}, 1),
    "a regex that takes ever longer": (regex("(a*)*b"), 1),
    "repetition_detection": (LARGE_DETECTION, 1),
    "the same, n 5": ({"n": 5, **LARGE_DETECTION}, 1),
    "the same, 20 requests": ({"n": 5, **LARGE_DETECTION}, 20),
    "repetition_detection, n 112": ({"n": CHOICES, **SMALL_DETECTION}, 1),
    "128 to 256, n 112": ({"n": CHOICES, **LARGE_DETECTION}, 1),
    "all, n 112": (
        {
            **{"n": CHOICES, **PENALTIES, "bad_words": WORDS, "logprobs": 8, "stream": True},
            "repetition_detection": SMALL_DETECTION["repetition_detection"],
        },
        1,
    ),
}


async def measure_row(
    session: aiohttp.ClientSession, params: dict[str, Any], count: int, seconds: float
) -> str:
    """Return the columns of a row."""
    statuses: Counter[str] = Counter()
    costly = [
        asyncio.create_task(repeat(session, {**LONG, **params}, statuses)) for _ in range(count)
    ]
    try:
        if costly:
            await asyncio.sleep(2)
        steps, start, times = await count_steps(session), time.perf_counter(), list[float]()
        # Short requests, one after another.
        while (began := time.perf_counter()) < start + seconds:
            async with session.post(COMPLETIONS, json=SHORT) as response:
                response.raise_for_status()
                await response.read()
            times.append(1_000 * (time.perf_counter() - began))
        duration, steps = time.perf_counter() - start, await count_steps(session) - steps
    finally:
        for task in costly:
            task.cancel()
        await asyncio.gather(*costly, return_exceptions=True)
    answers = ", ".join(f"{count} x {status}" for status, count in statuses.items())
    step_ms, p50 = 1_000 * duration / max(1, steps), statistics.median(times)
    return f"{step_ms:8.1f} {p50:8.1f} {max(times):8.0f}  {answers}"


async def repeat(
    session: aiohttp.ClientSession, body: dict[str, Any], statuses: Counter[str]
) -> None:
    """Send a request again and again, and count its statuses as soon as they are known."""
    while True:
        async with session.post(COMPLETIONS, json=body) as response:
            statuses[str(response.status)] += 1
            if response.status != 200:
                error = (await response.json())["error"]
                statuses[error["message"][:90]] += 1
                return
            async for _ in response.content.iter_any():
                pass


async def count_steps(session: aiohttp.ClientSession) -> float:
    async with session.get(METRICS) as response:
        text = await response.text()
    lines = (line for line in text.splitlines() if line.startswith(STEPS))
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def main(args: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        if args.url:
            timeout = aiohttp.ClientTimeout(total=None)
            running = aiohttp.ClientSession(args.url, timeout=timeout)
            session = await stack.enter_async_context(running)
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            environ = {"MODEL_NAME": str(args.model), "BASE_PATH": folder}
            session, _ = await stack.enter_async_context(serve(environ))
        await measure_row(session, {}, 0, args.seconds)  # warms up
        print(f"{'':32} {'ms/step':>8} {'p50':>8} {'max':>8}  statuses", flush=True)
        for name, (params, count) in ROWS.items():
            if not args.only or name in args.only:
                columns = await measure_row(session, params, count, args.seconds)
                print(f"{name:32} {columns}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--only", nargs="*", choices=ROWS)
    parser.add_argument("--url")
    parser.add_argument("--model", type=bench.path, default=bench.DEMO_MODEL)
    asyncio.run(main(parser.parse_args()))
