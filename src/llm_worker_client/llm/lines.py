"""Converts prompts to lines of a batch's input file, and lines of its output files to results."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llm_worker_client.llm.prompts import Item, encode_json

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
# Default parameters of raw jobs (jobs in the worker's own format). A batch's lines contain them, as
# otherwise the defaults in the model's generation config would apply.
RAW_JOB_DEFAULTS: Mapping[str, Any] = {
    "max_tokens": 16,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
# Parameters that only raw jobs support, with their defaults. Batches reject other values.
RAW_ONLY_PARAMETERS: Mapping[str, Any] = {
    "detokenize": True,
    "flat_logprobs": False,
    "prompt_logprobs": None,
    "routed_experts_prompt_start": 0,
    "skip_reading_prefix_cache": False,
    "trace_decode_token_ids": None,
}
# Tokens are requested as "token_id:5" because several tokens can have the same text.
_TOKEN_ID_PREFIX = "token_id:"
_TOKEN_ID_OPTIONS = {"return_token_ids": True, "return_tokens_as_token_ids": True}


def encode_input_file(items: Sequence[Item], url: str, shared: Mapping[str, Any]) -> bytes:
    """Return a batch's input file for a route (``url``); custom ids are the indexes of the items.

    Raises:
        ValueError, TypeError: If an item can't be in a batch.
    """
    bodies = {id(item.params): _to_body_params(item.params, url) for item in items}
    lines = []
    for index, item in enumerate(items):
        prompt = {"messages" if url == CHATS else "prompt": item.content}
        adapter = {} if item.adapter is None else {"model": item.adapter}
        body = {**shared, **prompt, **bodies[id(item.params)], **adapter}
        line = {"custom_id": str(index), "method": "POST", "url": url, "body": body}
        lines.append(encode_json(line, f"prompt {index}") + "\n")
    return "".join(lines).encode()


def _to_body_params(params: Mapping[str, Any], url: str) -> dict[str, Any]:
    remaining = dict(params)
    if remaining.pop("return_token_log_probs", False):
        remaining.setdefault("logprobs", 0)
    for name in remaining.keys() & RAW_ONLY_PARAMETERS.keys():
        if remaining.pop(name) != RAW_ONLY_PARAMETERS[name]:
            raise ValueError(f"sampling_params.{name}: batches don't support it")
    body = {**RAW_JOB_DEFAULTS, **remaining, **_TOKEN_ID_OPTIONS}
    if params.get("use_beam_search"):
        # Beam search rejects RAW_JOB_DEFAULTS except max_tokens, even with default values.
        body = {
            name: body[name] for name in body.keys() - (RAW_JOB_DEFAULTS.keys() - params.keys())
        }
        body.setdefault("max_tokens", RAW_JOB_DEFAULTS["max_tokens"])
    if url == CHATS and (count := body.pop("logprobs", None)) is not None:
        body |= {"logprobs": True, "top_logprobs": count}
    return body


def parse_input_item(line: Mapping[str, Any]) -> Item:
    """Return the item of an input line, with only the parameters that ``create_output`` reads."""
    body = line["body"]
    prompt = body.get("messages", body.get("prompt"))
    params = {"logprobs": body.get("top_logprobs", body.get("logprobs"))}
    return Item(prompt, params, None, prompt if isinstance(prompt, str) else None)


def parse_result(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result in an output line, converted to the format of raw jobs."""
    body = line["response"]["body"]
    choices = body["choices"]
    return {
        "request_id": body.get("id", ""),
        "prompt_token_ids": body.get("prompt_token_ids", choices[0].get("prompt_token_ids")),
        "usage": {"input": body["usage"]["prompt_tokens"]},
        "choices": [_to_raw_choice(choice) for choice in choices],
    }


def parse_error(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the error object in a line of the error file; its default code is the HTTP status."""
    response = line.get("response") or {}
    error = (response.get("body") or {}).get("error") or line.get("error") or {}
    return {"code": response.get("status_code"), **error}


def _to_raw_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    message, logprobs = choice.get("message"), choice.get("logprobs")
    text = choice.get("text") if message is None else message.get("content")
    entries = None if logprobs is None else _to_raw_logprobs(logprobs)
    return {**choice, "tokens": [text or ""], "logprobs": entries}


def _to_raw_logprobs(logprobs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Convert the log probabilities of a chat or a completion to the format of raw jobs."""
    if (content := logprobs.get("content")) is not None:
        chosen = [(one["token"], one["logprob"]) for one in content]
        tops = [{top["token"]: top["logprob"] for top in one["top_logprobs"]} for one in content]
    else:
        chosen = [*zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)]
        tops = logprobs.get("top_logprobs") or [{}] * len(chosen)
    entries = []
    for (token, logprob), top in zip(chosen, tops, strict=True):
        # The chosen token may not be among the likeliest ones.
        candidates = {**(top or {}), token: logprob}
        names = sorted(candidates, key=candidates.__getitem__, reverse=True)
        ids = [int(name.removeprefix(_TOKEN_ID_PREFIX)) for name in names]
        ranked = [
            {"id": id, "logprob": candidates[name], "token": None}
            for id, name in zip(ids, names, strict=True)
        ]
        entries.append({"logprob": logprob, "top": ranked})
    return entries


def parse_lines_by_index(content: bytes) -> dict[int, dict[str, Any]]:
    """Return the parsed lines of a batch's file by the index of their prompt."""
    lines = map(json.loads, content.splitlines())
    return {int(line["custom_id"]): line for line in lines}
