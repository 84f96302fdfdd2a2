"""What LLM Engine's client is refused: `python -m clients.llm_engine_refused PART...`."""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import llmengine
from clients.llm_engine_refusals import Refusal, refused
from llmengine import Completion, File, FineTune, Model
from llmengine.data_types import LLMInferenceFramework, ModelEndpointType

ASKED: dict[str, Any] = {"model": "demo", "prompt": "Once", "max_new_tokens": 4}
BODY = {"prompt": "Once", "max_new_tokens": 4, "temperature": 0.0}


def created(**keys: Any) -> Callable[[], object]:
    return lambda: Completion.create(**{**ASKED, **keys})


def streamed(**keys: Any) -> Callable[[], object]:
    return lambda: list(Completion.create(stream=True, **{**ASKED, **keys}))


def created_async(**keys: Any) -> Callable[[], object]:
    return lambda: asyncio.run(Completion.acreate(**{**ASKED, **keys}))


def streamed_async(**keys: Any) -> Callable[[], object]:
    async def read() -> None:
        async for _ in await Completion.acreate(stream=True, **{**ASKED, **keys}):
            pass

    return lambda: asyncio.run(read())


WAYS = {
    "sync": created,
    "stream": streamed,
    "async": created_async,
    "async stream": streamed_async,
}


def posted(**keys: Any) -> Callable[[], object]:
    """Return a call past the client's own checks of a completion's keys."""
    return lambda: Completion.post_sync(
        "v1/llm/completions-sync?model_endpoint_name=demo", {**BODY, **keys}, timeout=60
    )


BY_THE_WORKER = {
    "max_new_tokens": created(max_new_tokens=0),
    "two guided keys": created(guided_regex="a", guided_choice=["a"]),
    "regex": created(guided_regex="("),
    "grammar": created(guided_grammar="root ::= missing"),
    "too long": created(prompt="word " * 5000),
    # 413 elsewhere.
    "too large": created(prompt="word " * 5_000_000),
}
PAST_THE_CLIENT = {
    "temperature": posted(temperature=1.5),
    "presence_penalty": posted(presence_penalty=-0.5),
    "frequency_penalty": posted(frequency_penalty=2.5),
    "top_k": posted(top_k=-2),
    "top_p": posted(top_p=0),
    "prompt": posted(prompt=None),
    "unknown key": posted(max_tokens=4),
    # 415 and 405 elsewhere.
    "form": lambda: Completion.post_file(
        "v1/llm/completions-sync?model_endpoint_name=demo", {"file": b"{}"}, timeout=60
    ),
    "method": lambda: Completion.put("v1/files", {}, timeout=60),
}
OUT_OF_RANGE = {
    "temperature": created(temperature=1.5),
    "presence_penalty": created(presence_penalty=-0.5),
    "frequency_penalty": created(frequency_penalty=2.5),
    "top_k": created(top_k=-2),
    "top_p": created(top_p=0),
}
UNKNOWN = {
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
}
UNKNOWN_ROUTE = {"route": lambda: Completion.put("v1/llm/nothing", {}, timeout=60)}
ON_THE_PLATFORM = {
    "create": lambda: Model.create(
        name="llama-2-7b-test",
        model="llama-2-7b",
        inference_framework_image_tag="0.2.1.post1",
        inference_framework=LLMInferenceFramework.VLLM,
        num_shards=1,
        checkpoint_path="s3://path/to/checkpoint",
        cpus=8,
        memory="24Gi",
        storage="40Gi",
        gpus=1,
        min_workers=0,
        max_workers=1,
        per_worker=10,
        endpoint_type=ModelEndpointType.STREAMING,
        gpu_type="nvidia-ampere-a10",
        public_inference=False,
    ),
    "update": lambda: Model.update(name="demo", max_workers=2),
    "update of a name with slashes": lambda: Model.update(name="tiny/demo", max_workers=2),
}


def all_refused(calls: dict[str, Callable[[], object]]) -> dict[str, Refusal]:
    return {name: refused(call) for name, call in calls.items()}


def wrong_key() -> dict[str, Refusal]:
    llmengine.api_engine.set_api_key("sk-other")
    calls = {
        **{name: way() for name, way in WAYS.items()},
        "models": Model.list,
        "files": File.list,
    }
    try:
        return all_refused(calls)
    finally:
        llmengine.api_engine.set_api_key(None)


# Its parts, by name.
PARTS: dict[str, Callable[[], dict[str, Refusal]]] = {
    "unknown model": lambda: all_refused(
        {name: way(model="org/none") for name, way in WAYS.items()}
    ),
    "by the worker": lambda: all_refused(BY_THE_WORKER),
    "past the client": lambda: all_refused(PAST_THE_CLIENT),
    "in a stream": lambda: all_refused(
        {name: WAYS[name](guided_regex="(") for name in ("stream", "async", "async stream")}
    ),
    "out of range": lambda: all_refused(OUT_OF_RANGE),
    "unknown": lambda: all_refused(UNKNOWN),
    "unknown route": lambda: all_refused(UNKNOWN_ROUTE),
    "on the platform": lambda: all_refused(ON_THE_PLATFORM),
    "wrong key": wrong_key,
}


def main(*parts: str) -> None:
    json.dump({part: PARTS[part]() for part in parts}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
