"""A model that sees, on both paths of a worker of its own."""

import base64
import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.models import vision
from support.processes.emulated_endpoint import EndpointFactory

from emulator import Status


def shown(url: str) -> list[dict[str, Any]]:
    """Return a conversation about an image."""
    image = {"type": "image_url", "image_url": {"url": url}}
    return [{"role": "user", "content": [image, {"type": "text", "text": "What is this?"}]}]


# A worker of its own; model/test_media.py has such a model, too.
@pytest.mark.slow
async def test_a_model_that_sees_is_shown_the_images_on_both_paths(
    started_endpoint: EndpointFactory, demo_model: Path, tmp_path: Path
) -> None:
    vision.make(tmp_path, demo_model)
    params = {"max_tokens": 5, "temperature": 0}
    answers = {}
    async with started_endpoint(MODEL_NAME=str(tmp_path), MAX_MODEL_LEN="512") as seeing:
        for colour in ("red", "blue"):
            file = io.BytesIO()
            Image.new("RGB", (40, 30), colour).save(file, "PNG")
            url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
            job = await seeing.run({"messages": shown(url), "sampling_params": params})
            assert job.status is Status.COMPLETED, job.error
            (raw,) = job.output
            body = {"messages": shown(url), **params}
            job = await seeing.run({"openai_route": "/v1/chat/completions", "openai_input": body})
            (openai,) = job.output
            (answers[colour],) = raw["choices"][0]["tokens"]
            assert openai["choices"][0]["message"]["content"] == answers[colour]
            assert openai["usage"]["prompt_tokens"] == raw["usage"]["input"]
        assert answers["red"] != answers["blue"]
        # What else is refused unit/media shows.
        job = await seeing.run({"messages": shown("http://127.0.0.1:9/secret.png")})
        assert (job.status, '"code": 400' in (job.error or "")) == (Status.FAILED, True)
        assert "secret.png" not in seeing.logged
