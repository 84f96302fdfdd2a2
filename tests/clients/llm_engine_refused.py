"""What LLM Engine's client is refused: `python -m clients.llm_engine_refused PART...`."""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import llmengine
from clients.llm_engine_refusals import Refusal, refused
from llmengine import Completion, File, FineTune, Model
from llmengine.data_types import LLMInferenceFramework

ASKED: dict[str, Any] = {"model": "demo", "prompt": "Once", "max_new_tokens": 4}
ROUTE = "v1/llm/completions-sync?model_endpoint_name=demo"
Calls = dict[str, Callable[[], object]]


def created(**keys: Any) -> Callable[[], object]:
    return lambda: Completion.create(**{**ASKED, **keys})


def each_way(**keys: Any) -> Calls:
    """Return a completion at once and streamed, without asyncio and with it."""
    asked = {**ASKED, **keys}

    async def read() -> None:
        async for _ in await Completion.acreate(stream=True, **asked):
            pass

    return {
        "sync": created(**keys),
        "stream": lambda: list(Completion.create(stream=True, **asked)),
        "async": lambda: asyncio.run(Completion.acreate(**asked)),
        "async stream": lambda: asyncio.run(read()),
    }


PARTS: dict[str, Calls] = {
    "unknown model": each_way(model="org/none"),
    "wrong regex": each_way(guided_regex="("),
    # Past the client's own checks; the last two are 415 and 405 elsewhere.
    "past the client": {
        "unknown key": lambda: Completion.post_sync(
            ROUTE, {**ASKED, "temperature": 0.0, "max_tokens": 4}, timeout=60
        ),
        "form": lambda: Completion.post_file(ROUTE, {"file": b"{}"}, timeout=60),
        "method": lambda: Completion.put("v1/files", {}, timeout=60),
        "route": lambda: Completion.put("v1/llm/nothing", {}, timeout=60),
        "create": lambda: Model.create(
            name="llama-2-7b-test",
            model="llama-2-7b",
            inference_framework_image_tag="0.2.1.post1",
            inference_framework=LLMInferenceFramework.VLLM,
            checkpoint_path="s3://path/to/checkpoint",
            gpu_type="nvidia-ampere-a10",
        ),
        "update": lambda: Model.update(name="tiny/demo", max_workers=2),
    },
    "other values": {
        "two guided keys": created(guided_regex="a", guided_choice=["a"]),
        "too long": created(prompt="word " * 5000),
        # 413 elsewhere.
        "too large": created(prompt="word " * 5_000_000),
    },
    "out of range": {"temperature": created(temperature=1.5)},
    "not there": {
        "file": lambda: File.get("file-none"),
        "content": lambda: File.download("file-none"),
        "deleted file": lambda: File.delete("file-none"),
        "batch": lambda: Completion.get_batch_completion("batch_none"),
        "model": lambda: Model.get("org/none"),
        "deleted model": lambda: Model.delete("none"),
        "download": lambda: Model.download("none"),
        "fine-tune": lambda: FineTune.get("ft-none"),
        "cancelled fine-tune": lambda: FineTune.cancel("ft-none"),
        "events": lambda: FineTune.get_events("ft-none"),
    },
    "wrong key": {**each_way(), "models": Model.list, "files": File.list},
}


def refusals(part: str) -> dict[str, Refusal]:
    if part == "wrong key":
        llmengine.api_engine.set_api_key("sk-other")
    return {name: refused(call) for name, call in PARTS[part].items()}


def main(*parts: str) -> None:
    json.dump({part: refusals(part) for part in parts}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
