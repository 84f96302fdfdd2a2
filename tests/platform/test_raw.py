"""Raw jobs through the platform: many at once, lists with their progress, and images."""

import asyncio
import base64
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import vision_model
from endpoints import Endpoint, EndpointFactory
from PIL import Image

from emulator import Job, Status

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Of 500 pairs of jobs, each drawn from these; every seed makes an answer of its own.
PROMPTS = ["Once", "Hello", "The small worker", [5, 6, 7]]
PARAMS: list[dict[str, Any]] = [
    {"max_tokens": 12},
    {"max_tokens": 30, "n": 3, "temperature": 0.7},
    {"max_tokens": 24, "top_p": 0.9, "logprobs": 1},
    {"max_tokens": 24, "stop": [" the", "。"]},
    {"max_tokens": 8, "n": 2, "best_of": 4},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def endpoint(started_endpoint: EndpointFactory) -> AsyncIterator[Endpoint]:
    async with started_endpoint(MAX_MODEL_LEN="1024", MAX_CONCURRENCY="64") as running:
        yield running


def texts(job: Job) -> list[str]:
    """The joined text of each choice."""
    assert job.status is Status.COMPLETED, job.error
    choices = zip(*(chunk["choices"] for chunk in job.output), strict=True)
    return ["".join(text for part in parts for text in part["tokens"]) for parts in choices]


async def test_1000_mixed_jobs_at_concurrency_64_get_their_own_answers(endpoint: Endpoint) -> None:
    slots = asyncio.Semaphore(32)
    answers: list[list[str]] = []

    async def check(seed: int) -> None:
        payload = {
            "prompt": PROMPTS[seed % len(PROMPTS)],
            "sampling_params": {**PARAMS[seed % len(PARAMS)], "seed": seed, "ignore_eos": True},
        }
        async with slots:
            streamed, whole = await asyncio.gather(
                endpoint.run({**payload, "stream": True}), endpoint.run(payload)
            )
        assert texts(streamed) == texts(whole)
        assert streamed.output[-1]["usage"] == whole.output[-1]["usage"]
        assert streamed.output[-1]["request_id"] == streamed.id
        answers.append(texts(whole))

    await asyncio.gather(*(check(seed) for seed in range(500)))
    # Had answers been mixed up, some would have come twice.
    assert len({tuple(answer) for answer in answers}) > 450


async def test_a_list_is_one_job_whose_progress_the_platform_shows(endpoint: Endpoint) -> None:
    params = {"max_tokens": 400, "ignore_eos": True}
    job = endpoint.submit(
        {
            "prompts": ["Once"] * 40,
            "sampling_params": [{"max_tokens": 1}, *[params] * 39],
            "use_tqdm": True,
        }
    )
    seen = set()
    while not job.ended:
        if job.progress is not None:
            seen.add((job.progress["done"], job.progress["total"]))
        await asyncio.sleep(0.02)
    (whole,) = job.output
    assert len(whole["outputs"]) == 40
    assert (0, 40) in seen
    assert (1, 40) in seen


def image(colour: str) -> dict[str, Any]:
    file = io.BytesIO()
    Image.new("RGB", (40, 30), colour).save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


async def test_a_model_that_sees_is_shown_the_images_on_both_paths(
    started_endpoint: EndpointFactory, demo_model: Path, tmp_path: Path
) -> None:
    vision_model.make(tmp_path, demo_model)
    params = {"max_tokens": 5, "temperature": 0}
    async with started_endpoint(MODEL_NAME=str(tmp_path), MAX_MODEL_LEN="512") as seeing:
        raw = {}
        for colour in ("red", "blue"):
            parts = [image(colour), {"type": "text", "text": "What is this?"}]
            messages = [{"role": "user", "content": parts}]
            job = await seeing.run({"messages": messages, "sampling_params": params})
            raw[colour] = (texts(job), job.output[0]["usage"]["input"])
            body = {"messages": messages, **params}
            job = await seeing.run({"openai_route": "/v1/chat/completions", "openai_input": body})
            openai = job.output[0]
            told = [openai["choices"][0]["message"]["content"]]
            assert (told, openai["usage"]["prompt_tokens"]) == raw[colour]
        assert raw["red"][0] != raw["blue"][0]
        parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
        job = await seeing.run({"messages": [{"role": "user", "content": parts}]})
        assert job.status is Status.FAILED
        assert '"code": 400' in (job.error or "")
