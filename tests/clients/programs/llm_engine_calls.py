"""Calls of Scale LLM Engine's client that are not in docs/llm-engine.md.

`python -m clients.programs.llm_engine_calls PARTS BASE...`: PARTS are keys of REFUSED, separated by
commas. The program lists the models under each base, and keeps the last base.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import llmengine
from llmengine import (
    Completion,
    CreateBatchCompletionsModelConfig,
    File,
    FineTune,
    Model,
)
from llmengine.data_types import ToolConfig

STORY = "Once upon a time there was a small worker"
DESCRIBE = "<|im_start|>user\nDescribe the worker as JSON.<|im_end|>\n<|im_start|>assistant\n"
PLAIN = {"model": "demo", "prompt": STORY, "max_new_tokens": 16, "temperature": 0.0}
# The client also sends null values in a schema.
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"enum": ["demo", "other"]},
        "streams": {"enum": [None]},
        "chunks": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["name", "streams", "chunks"],
    "additionalProperties": False,
}
COMPLETIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stop": {"stop_sequences": [" wide", "never"]},
    "with the stop": {"stop_sequences": [" wide", "never"], "include_stop_str_in_output": True},
    "json": {"prompt": DESCRIBE, "max_new_tokens": 80, "guided_json": SCHEMA},
    "regex": {"guided_regex": "[0-9]{3}-[0-9]{2}"},
    "choice": {"guided_choice": ["Paris", "London"]},
    "grammar": {"guided_grammar": 'root ::= "yes " ("no " | "perhaps ") "end"'},
}


def completion_call(**keys: Any) -> Callable[[], Any]:
    return lambda: Completion.create(**{**PLAIN, **keys})


def batch_call(**keys: Any) -> Callable[[], Any]:
    paths = {"input_data_path": "s3://my-input-path", "output_data_path": "out/tools.json"}
    config = CreateBatchCompletionsModelConfig(model="demo")
    return lambda: Completion.batch_create(**paths, model_config=config, **keys)


def each_way(**keys: Any) -> dict[str, Callable[[], object]]:
    """Return calls for a whole and a streamed completion, each with and without asyncio."""
    params = {**PLAIN, **keys}

    async def read() -> None:
        async for _ in await Completion.acreate(stream=True, **params):
            pass

    return {
        "sync": completion_call(**keys),
        "stream": lambda: list(Completion.create(stream=True, **params)),
        "async": lambda: asyncio.run(Completion.acreate(**params)),
        "async stream": lambda: asyncio.run(read()),
    }


REFUSED: dict[str, dict[str, Callable[[], object]]] = {
    "unknown model": each_way(model="org/none"),
    "other values": {
        "wrong regex": completion_call(guided_regex="("),
        "too long": completion_call(prompt="word " * 5000),
        # Other servers refuse it with 413.
        "too large": completion_call(prompt="word " * 5_000_000),
    },
    "of batches": {
        "tool": batch_call(tool_config=ToolConfig(name="code_evaluator")),
        "bucket": batch_call(),
    },
    "base model": {"deleted": lambda: Model.delete("demo")},
    "endpoints": {
        "created": lambda: Model.create(
            name="llama-2-7b-test",
            model="llama-2-7b",
            inference_framework_image_tag="0.2.1.post1",
            checkpoint_path="s3://path/to/checkpoint",
            gpus=1,
            gpu_type="nvidia-ampere-a10",
        ),
        "changed": lambda: Model.update(name="demo", max_workers=2),
    },
    "not there": {
        "content": lambda: File.download("file-none"),
        "batch": lambda: Completion.get_batch_completion("batch_none"),
        "deleted model": lambda: Model.delete("none"),
        "cancelled fine-tune": lambda: FineTune.cancel("ft-none"),
    },
    "wrong key": {**each_way(), "models": Model.list},
}


def completion(name: str) -> dict[str, Any]:
    events = Completion.create(stream=True, **{**PLAIN, **COMPLETIONS[name]})
    pieces = [event.output.text for event in events]
    return {
        "whole": completion_call(**COMPLETIONS[name])().output.text,
        "streamed": "".join(pieces),
    }


def refusal(call: Callable[[], object]) -> tuple[str, str]:
    """Return the class and message of the exception that a call raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - its class is the result
        return type(error).__name__, str(error)
    sys.exit("What should be refused was answered")


def refusals(part: str) -> dict[str, tuple[str, str]]:
    if part == "wrong key":
        llmengine.api_engine.set_api_key("sk-other")
    return {name: refusal(call) for name, call in REFUSED[part].items()}


def names_under(base: str) -> list[str]:
    llmengine.api_engine.set_base_path(base)
    return [model.name for model in Model.list().model_endpoints]


def main(parts: str, *bases: str) -> None:
    answers: dict[str, Any] = {
        "completions": {name: completion(name) for name in COMPLETIONS},
        "bases": [names_under(base) for base in bases],
        "refused": {part: refusals(part) for part in parts.split(",")},
    }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
