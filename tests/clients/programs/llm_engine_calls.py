"""What docs/llm-engine.md does not show of Scale LLM Engine's client.

`python -m clients.programs.llm_engine_calls PARTS BASE...`: parts of REFUSED, with commas between
them. Under each base the models are listed; the last one stays.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import llmengine
from llmengine import Completion, File, FineTune, Model

STORY = "Once upon a time there was a small worker"
DESCRIBE = "<|im_start|>user\nDescribe the worker as JSON.<|im_end|>\n<|im_start|>assistant\n"
PLAIN = {"model": "demo", "prompt": STORY, "max_new_tokens": 16, "temperature": 0.0}
# As the client sends it: what is null in a schema is a value.
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


def created(**keys: Any) -> Callable[[], Any]:
    return lambda: Completion.create(**{**PLAIN, **keys})


def each_way(**keys: Any) -> dict[str, Callable[[], object]]:
    """Return a completion at once and streamed, without asyncio and with it."""
    asked = {**PLAIN, **keys}

    async def read() -> None:
        async for _ in await Completion.acreate(stream=True, **asked):
            pass

    return {
        "sync": created(**keys),
        "stream": lambda: list(Completion.create(stream=True, **asked)),
        "async": lambda: asyncio.run(Completion.acreate(**asked)),
        "async stream": lambda: asyncio.run(read()),
    }


REFUSED: dict[str, dict[str, Callable[[], object]]] = {
    "unknown model": each_way(model="org/none"),
    "other values": {
        "wrong regex": created(guided_regex="("),
        "too long": created(prompt="word " * 5000),
        # 413 elsewhere.
        "too large": created(prompt="word " * 5_000_000),
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
    return {"whole": created(**COMPLETIONS[name])().output.text, "streamed": "".join(pieces)}


def refusal(call: Callable[[], object]) -> tuple[str, str]:
    """Return which exception a call raises, and its message."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  # which one it is is the result
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
