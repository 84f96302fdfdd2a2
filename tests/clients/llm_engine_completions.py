"""Completions with Scale LLM Engine's client: `python -m clients.llm_engine_completions`."""

import asyncio
import json
import sys
from typing import Any

from llmengine import Completion

STORY = "Once upon a time there was a small worker"
TURNS = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
GREETING = TURNS.format("Hello!")
JSON = {"prompt": TURNS.format("Describe the worker as JSON."), "max_new_tokens": 80}
# Its sentences repeat themselves.
SENTENCES = {"prompt": "The small worker", "max_new_tokens": 40}
PLAIN: dict[str, Any] = {"max_new_tokens": 16, "temperature": 0.0}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"enum": ["demo", "other"]},
        "streams": {"type": "boolean"},
        "chunks": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["name", "streams", "chunks"],
    "additionalProperties": False,
}
# As the client sends it: what is null in a schema is a value.
NULLABLE = {
    **SCHEMA,
    "properties": {**SCHEMA["properties"], "streams": {"enum": [None]}},
}
GRAMMAR = 'root ::= "yes " ("no " | "perhaps ") "end"'
# The keys of a completion, by what they show.
ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "log probabilities": {"return_token_log_probs": True},
    "one choice": {"temperature": 1.0, "top_k": 1},
    "small nucleus": {"temperature": 1.0, "top_p": 1e-6},
    "all tokens": {"top_k": -1, "top_p": 1.0},
    "stop": {"stop_sequences": [" wide", "never"]},
    "with the stop": {"stop_sequences": [" wide", "never"], "include_stop_str_in_output": True},
    "frequency": {**SENTENCES, "frequency_penalty": 2.0},
    "presence": {**SENTENCES, "presence_penalty": 2.0},
    "no penalty": {**SENTENCES, "frequency_penalty": 0.0, "presence_penalty": 0.0},
    "json": {**JSON, "guided_json": SCHEMA},
    "null in an enum": {**JSON, "guided_json": NULLABLE},
    "regex": {"guided_regex": "[0-9]{3}-[0-9]{2}"},
    "choice": {"guided_choice": ["Paris", "London"]},
    "grammar": {"guided_grammar": GRAMMAR},
    "other name": {"model": "tiny/demo"},
    "to its end": {"prompt": GREETING, "max_new_tokens": 60},
    "special tokens": {
        "prompt": GREETING,
        "max_new_tokens": 60,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    },
}


def keys(asked: dict[str, Any]) -> dict[str, Any]:
    return {"model": "demo", "prompt": STORY, **PLAIN, **asked}


def streamed(asked: dict[str, Any]) -> list[dict[str, Any]]:
    return [event.dict() for event in Completion.create(stream=True, **keys(asked))]


async def streamed_async(asked: dict[str, Any]) -> list[dict[str, Any]]:
    stream = await Completion.acreate(stream=True, **keys(asked))
    return [event.dict() async for event in stream]


async def created_async() -> dict[str, Any]:
    """Ask one after another: what else is computed beside a request changes its last digits."""
    answers = {}
    for name, asked in ASKED.items():
        whole = await Completion.acreate(**keys(asked))
        answers[name] = {"whole": whole.dict(), "events": await streamed_async(asked)}
    return answers


def main() -> None:
    answers = {
        "sync": {
            name: {"whole": Completion.create(**keys(asked)).dict(), "events": streamed(asked)}
            for name, asked in ASKED.items()
        },
        "async": asyncio.run(created_async()),
        # With nothing but what has no default.
        "defaults": Completion.create(model="demo", prompt=STORY).dict(),
    }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
