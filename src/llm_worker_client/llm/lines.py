"""Items as lines of a batch, and lines of its files as outputs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llm_worker_client.llm.outputs import (
    Candidates,
    CompletionOutput,
    Logprob,
    Position,
    RequestOutput,
)
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


def output_of(item: Item, line: Mapping[str, Any]) -> RequestOutput:
    """Return what a line of the output says."""
    body = line["response"]["body"]
    choices = body["choices"]
    ids = body.get("prompt_token_ids", choices[0].get("prompt_token_ids"))
    return RequestOutput(
        request_id=body.get("id", ""),
        prompt=item.prompt,
        prompt_token_ids=item.token_ids if ids is None else ids,
        prompt_logprobs=None,
        outputs=[_choice(choice, item) for choice in choices],
        lora_request=item.adapter,
        num_prompt_tokens=body["usage"]["prompt_tokens"],
    )


def error_of(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the error object of a line of the error file."""
    response = line.get("response") or {}
    found = (response.get("body") or {}).get("error") or line.get("error") or {}
    return {"code": response.get("status_code"), **found}


def _choice(choice: Mapping[str, Any], item: Item) -> CompletionOutput:
    message = choice.get("message")
    text = choice.get("text", "") if message is None else message.get("content")
    logprobs = choice.get("logprobs")
    told = None if logprobs is None else _positions(logprobs, item.params.get("logprobs"))
    chosen = None if logprobs is None else _chosen(logprobs)
    return CompletionOutput(
        index=choice["index"],
        text=text or "",
        token_ids=choice.get("token_ids") or [],
        cumulative_logprob=None if chosen is None else sum(value for _, value in chosen),
        logprobs=told,
        finish_reason=choice.get("finish_reason"),
        stop_reason=choice.get("stop_reason"),
        lora_request=item.adapter,
    )


def _chosen(logprobs: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return each token with its log probability: a chat's, or a completion's."""
    if (content := logprobs.get("content")) is not None:
        return [(entry["token"], entry["logprob"]) for entry in content]
    return list(zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True))


def _positions(logprobs: Mapping[str, Any], count: Any) -> list[Position]:
    candidates = Candidates(count)
    chosen = _chosen(logprobs)
    if (content := logprobs.get("content")) is not None:
        tops = [
            {one["token"]: one["logprob"] for one in entry["top_logprobs"]} for entry in content
        ]
    else:
        tops = logprobs.get("top_logprobs") or [{} for _ in chosen]
    return [
        {
            _id(token): Logprob(value, candidates.rank(place))
            for place, (token, value) in enumerate(
                # The chosen one may not be among the likeliest.
                sorted({**(top or {}), name: its}.items(), key=lambda pair: -pair[1]),
                start=1,
            )
        }
        for (name, its), top in zip(chosen, tops, strict=True)
    ]


def _id(token: str) -> int:
    return int(token.removeprefix(_AS_ID))


def read(content: bytes) -> dict[int, dict[str, Any]]:
    """Return the lines of a file by the places that name them."""
    found = map(json.loads, content.splitlines())
    return {int(line["custom_id"]): line for line in found}
