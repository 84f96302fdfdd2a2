"""Items as lines of a batch, and lines of its files as outputs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llm_worker_client.llm.prompts import Item, encoded

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
# The raw form's defaults, which hold whatever the model's own file proposes.
DEFAULTS: Mapping[str, Any] = {
    "max_tokens": 16,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
# Of the raw form alone, with what asks for nothing: a body on the OpenAI path would lose them.
RAW_ONLY: Mapping[str, Any] = {
    "detokenize": True,
    "flat_logprobs": False,
    "prompt_logprobs": None,
    "routed_experts_prompt_start": 0,
    "skip_reading_prefix_cache": False,
    "trace_decode_token_ids": None,
}
# Tokens come as "token_id:5": their text alone would not tell which candidate it is.
_AS_ID = "token_id:"
_ASKED = {"return_token_ids": True, "return_tokens_as_token_ids": True}


def lines_of(items: Sequence[Item], url: str, shared: Mapping[str, Any]) -> bytes:
    """Return items as a batch's input; their places are the lines' names.

    Args:
        items: all of them.
        url: of the lines.
        shared: what all bodies hold.

    Raises:
        ValueError, TypeError: a parameter can't be part of it.
    """
    bodies = {id(item.params): _params(item.params, url) for item in items}
    made = []
    for index, item in enumerate(items):
        asked = {"messages" if url == CHATS else "prompt": item.asked}
        adapter = {} if item.adapter is None else {"model": item.adapter}
        body = {**shared, **asked, **bodies[id(item.params)], **adapter}
        line = {"custom_id": str(index), "method": "POST", "url": url, "body": body}
        made.append(encoded(line, f"prompt {index}") + "\n")
    return "".join(made).encode()


def _params(params: Mapping[str, Any], url: str) -> dict[str, Any]:
    asked = dict(params)
    if asked.pop("return_token_log_probs", False):
        asked.setdefault("logprobs", 0)
    for name in asked.keys() & RAW_ONLY.keys():
        if asked.pop(name) != RAW_ONLY[name]:
            raise ValueError(f"sampling_params.{name}: a batch has it not")
    body = {**DEFAULTS, **asked, **_ASKED}
    if params.get("use_beam_search"):
        # It takes none of them, be they the defaults.
        body = {name: body[name] for name in body.keys() - (DEFAULTS.keys() - params.keys())}
        body.setdefault("max_tokens", DEFAULTS["max_tokens"])
    if url == CHATS and (count := body.pop("logprobs", None)) is not None:
        body |= {"logprobs": True, "top_logprobs": count}
    return body


def item_of(line: Mapping[str, Any]) -> Item:
    """Return the item that a line of the input was made of, as far as outputs tell of it."""
    body = line["body"]
    asked = body.get("messages", body.get("prompt"))
    params = {"logprobs": body.get("top_logprobs", body.get("logprobs"))}
    return Item(asked, params, None, asked if isinstance(asked, str) else None)


def result_of(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a line of the output says, in the raw form."""
    body = line["response"]["body"]
    choices = body["choices"]
    return {
        "request_id": body.get("id", ""),
        "prompt_token_ids": body.get("prompt_token_ids", choices[0].get("prompt_token_ids")),
        "usage": {"input": body["usage"]["prompt_tokens"]},
        "choices": [_choice(choice) for choice in choices],
    }


def error_of(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the error object of a line of the error file."""
    response = line.get("response") or {}
    found = (response.get("body") or {}).get("error") or line.get("error") or {}
    return {"code": response.get("status_code"), **found}


def _choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    message, logprobs = choice.get("message"), choice.get("logprobs")
    text = choice.get("text") if message is None else message.get("content")
    entries = None if logprobs is None else _entries(logprobs)
    return {**choice, "tokens": [text or ""], "logprobs": entries}


def _entries(logprobs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the positions of a chat's or a completion's log probabilities, in the raw form."""
    if (content := logprobs.get("content")) is not None:
        chosen = [(one["token"], one["logprob"]) for one in content]
        tops = [{top["token"]: top["logprob"] for top in one["top_logprobs"]} for one in content]
    else:
        chosen = [*zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)]
        tops = logprobs.get("top_logprobs") or [{}] * len(chosen)
    entries = []
    for (token, logprob), top in zip(chosen, tops, strict=True):
        # The chosen one may not be among the likeliest.
        candidates = {**(top or {}), token: logprob}
        ranked = [
            {"id": int(name.removeprefix(_AS_ID)), "logprob": candidates[name], "token": None}
            for name in sorted(candidates, key=candidates.__getitem__, reverse=True)
        ]
        entries.append({"logprob": logprob, "top": ranked})
    return entries


def read(content: bytes) -> dict[int, dict[str, Any]]:
    """Return the lines of a file by the places that name them."""
    found = map(json.loads, content.splitlines())
    return {int(line["custom_id"]): line for line in found}
