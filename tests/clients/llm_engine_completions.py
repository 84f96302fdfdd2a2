"""Completions with Scale LLM Engine's client: `python -m clients.llm_engine_completions`."""

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from llmengine import Completion

STORY = "Once upon a time there was a small worker"
DESCRIBE = "<|im_start|>user\nDescribe the worker as JSON.<|im_end|>\n<|im_start|>assistant\n"
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
GRAMMAR = 'root ::= "yes " ("no " | "perhaps ") "end"'
# The keys of a completion, by what they show.
ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "log probabilities": {"return_token_log_probs": True},
    "other name": {"model": "tiny/demo", "temperature": 1.0, "top_k": 1, "top_p": 1.0},
    "stop": {"stop_sequences": [" wide", "never"]},
    "with the stop": {"stop_sequences": [" wide", "never"], "include_stop_str_in_output": True},
    "json": {"prompt": DESCRIBE, "max_new_tokens": 80, "guided_json": SCHEMA},
    "regex": {"guided_regex": "[0-9]{3}-[0-9]{2}"},
    "choice": {"guided_choice": ["Paris", "London"]},
    "grammar": {"guided_grammar": GRAMMAR},
}
OF_EACH = 10


def keys(name: str) -> dict[str, Any]:
    plain = {"model": "demo", "prompt": STORY, "max_new_tokens": 16, "temperature": 0.0}
    return {**plain, **ASKED[name]}


def answered(name: str) -> dict[str, Any]:
    events = [event.dict() for event in Completion.create(stream=True, **keys(name))]
    return {"whole": Completion.create(**keys(name)).dict(), "events": events}


async def answered_async(name: str) -> dict[str, Any]:
    whole = await Completion.acreate(**keys(name))
    stream = await Completion.acreate(stream=True, **keys(name))
    return {"whole": whole.dict(), "events": [event.dict() async for event in stream]}


async def each_async() -> dict[str, Any]:
    """Ask one after another: what else is computed beside a request changes its last digits."""
    return {name: await answered_async(name) for name in ASKED}


def text(name: str) -> tuple[str, str]:
    return name, Completion.create(**keys(name)).output.text


async def together_async() -> list[tuple[str, str]]:
    async def text_async(name: str) -> tuple[str, str]:
        return name, (await Completion.acreate(**keys(name))).output.text

    return await asyncio.gather(*(text_async(name) for name in [*ASKED] * OF_EACH))


def main() -> None:
    with ThreadPoolExecutor(len(ASKED) * OF_EACH) as threads:
        together = list(threads.map(text, [*ASKED] * OF_EACH))
    answers = {
        "sync": {name: answered(name) for name in ASKED},
        "async": asyncio.run(each_async()),
        "together": together + asyncio.run(together_async()),
        # With nothing but what has no default.
        "defaults": Completion.create(model="demo", prompt=STORY).dict(),
    }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
