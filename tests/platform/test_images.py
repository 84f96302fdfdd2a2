"""A model that sees, on both paths of a worker of its own."""

import base64
import io
from pathlib import Path
from typing import Any

from PIL import Image
from support.models import vision as vision_model
from support.processes.emulated_endpoint import EndpointFactory

from emulator import Status


def image(colour: str) -> dict[str, Any]:
    file = io.BytesIO()
    Image.new("RGB", (40, 30), colour).save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def bomb() -> str:
    """A small file of very many pixels."""
    file = io.BytesIO()
    Image.new("1", (20_000, 10_000)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


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
            assert job.status is Status.COMPLETED, job.error
            (whole,) = job.output
            raw[colour] = (whole["choices"][0]["tokens"], whole["usage"]["input"])
            body = {"messages": messages, **params}
            job = await seeing.run({"openai_route": "/v1/chat/completions", "openai_input": body})
            openai = job.output[0]
            answer = [openai["choices"][0]["message"]["content"]]
            assert (answer, openai["usage"]["prompt_tokens"]) == raw[colour]
        assert raw["red"][0] != raw["blue"][0]
        for url in (
            "data:image/png;base64,AAAA",
            "data:image/png,abc",
            "file:///etc/hostname",
            "http://127.0.0.1:9/secret.png",
            bomb(),
        ):
            parts = [{"type": "image_url", "image_url": {"url": url}}]
            job = await seeing.run({"messages": [{"role": "user", "content": parts}]})
            assert job.status is Status.FAILED
            assert '"code": 400' in (job.error or ""), job.error
        assert "secret.png" not in seeing.logged
