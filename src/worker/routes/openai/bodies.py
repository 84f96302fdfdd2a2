"""What is done to a request's body before vLLM's server sees it.

Parameters that other servers have, or that vLLM once had, are translated or refused by name; what
is no caller's business is refused; what nobody knows is passed on and logged.
"""

import logging
from dataclasses import dataclass
from typing import Any

from worker.engine import Engine
from worker.errors import InvalidInput
from worker.job import OpenAIJob
from worker.job.base import unknown_key, with_system_prompt, without_nulls
from worker.job.sampling import BEAM_SEARCH_IGNORES, OUTSIDE, Sampling
from worker.job.structured import REPLACED, STRUCTURED
from worker.routes.openai.ranking import Ranking
from worker.settings import Settings

log = logging.getLogger(__name__)

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
TOKENIZE = "/tokenize"

# A chat's, where neither the request nor the model's generation_config has one.
CHAT_TEMPERATURE = 0.7

# What reaches the library that decodes images, or other machines; and what is the worker's to say.
DENIED = {
    "mm_processor_kwargs": "it is the operator's to set",
    "media_io_kwargs": "it is the operator's to set",
    "prompt_embeds": "this worker takes text and token ids",
    "kv_transfer_params": "this worker shares its cache with no other",
    "ec_transfer_params": "this worker shares its cache with no other",
    "request_id": "it is the job's id",
}

# Parameters that are checked, and some translated, as the raw path's are.
SAMPLED = {"n", "best_of", "use_beam_search", "length_penalty", "early_stopping"} | (
    OUTSIDE - {"return_token_log_probs"}
)
# Of those, what vLLM's server does not take.
OURS = SAMPLED - {"n", "use_beam_search", "length_penalty", STRUCTURED}

# Names that vLLM has dropped altogether, refused with what to do instead.
GONE = REPLACED.keys() - {"truncate_prompt_tokens"}

# Items of a list. Each wrong one costs vLLM's checks a complaint for each of its alternatives, of
# which an item of a response's input has the most: half a gigabyte for so many.
MOST_ITEMS = 2_048
MOST_INPUT_ITEMS = 500
# How far lists of lists are looked into: a message's parts.
DEPTH = 4

# Names that callers can make up: no more of them are logged, nor kept.
MOST_TOLD = 100
_told: set[str] = set()


@dataclass(frozen=True, slots=True)
class Asked:
    """What vLLM's server is asked, and what of its answer is for the caller."""

    body: dict[str, Any] | None
    ranking: Ranking | None = None

    def kept(self, value: Any) -> Any:
        return value if self.ranking is None else self.ranking.best(value)


def prepared(
    job: OpenAIJob, path: str, engine: Engine, request_id: str, settings: Settings
) -> Asked:
    """Make the body for vLLM's server, where its route is at ``path``.

    Raises:
        InvalidInput: naming the parameter.
    """
    body = without_nulls(job.body or {})
    known = engine.keys(path) or frozenset()
    _refuse_denied(body)
    _refuse_long(body)
    body.setdefault("model", engine.model.names[0])
    _converse(job, path, body, settings.system_prompt)
    ranking = None
    if "n" in known:
        if path == CHAT and not body.get("use_beam_search"):
            default = engine.model.temperature
            body.setdefault("temperature", CHAT_TEMPERATURE if default is None else default)
        ranking = _sample(body, stream=job.stream)
    unknown = sorted(body.keys() - known)
    if unknown and settings.strict_requests:
        raise InvalidInput(unknown_key(unknown[0], known), param=unknown[0])
    for name in unknown:
        _tell_unknown(name, path, request_id)
    if path == RESPONSES:
        # Of other routes the server takes it from a header.
        body["request_id"] = f"resp_{request_id}"
    return Asked(body, ranking)


def _refuse_denied(body: dict[str, Any]) -> None:
    nested = body.get("chat_template_kwargs")
    for holder in (body, nested if isinstance(nested, dict) else {}):
        for name in holder.keys() & DENIED.keys():
            raise InvalidInput(f"{name}: not in a request: {DENIED[name]}", param=name)


def _refuse_long(value: Any, name: str = "", depth: int = DEPTH) -> None:
    """Refuse lists that vLLM would take too long to refuse; token ids are many and quickly read."""
    if isinstance(value, list) and len(value) > MOST_ITEMS and not isinstance(value[0], int):
        raise InvalidInput(f"{name}: at most {MOST_ITEMS:,} items", param=name)
    if depth and isinstance(value, dict):
        for key, each in value.items():
            _refuse_long(each, name or key, depth - 1)
    elif depth and isinstance(value, list) and value and not isinstance(value[0], int):
        for each in value:
            _refuse_long(each, name, depth - 1)


def _converse(job: OpenAIJob, path: str, body: dict[str, Any], system: str | None) -> None:
    """Complete a conversation: the operator's words stand first, if the caller has none there."""
    if path == RESPONSES:
        if isinstance(body.get("input"), list):
            if len(body["input"]) > MOST_INPUT_ITEMS:
                raise InvalidInput(f"input: at most {MOST_INPUT_ITEMS} items", param="input")
            body["input"] = [_readable(item) for item in body["input"]]
        if system is not None and not _has_system(body.get("input")):
            body.setdefault("instructions", system)
    elif path.startswith(MESSAGES):
        if system is not None:
            body.setdefault("system", system)
    elif path in (CHAT, TOKENIZE) and "messages" in body:
        role = {} if job.versioned else {"role": "user"}
        body["messages"] = _conversation(body["messages"], role, system)


def _conversation(messages: Any, role: dict[str, str], system: str | None) -> Any:
    """Make messages of a text; ``role`` is that of messages without one, if they may do without."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        return messages
    return with_system_prompt([{**role, **message} for message in messages], system)


def _readable(item: Any) -> Any:
    """Write as one text what vLLM reads only so: an earlier answer's parts, a tool's output."""
    if not isinstance(item, dict):
        return item
    for parts in (item.get("content"), item.get("output")):
        if isinstance(parts, list) and any(_of_type(part, "input_file") for part in parts):
            raise InvalidInput("input: this worker takes no files: send their text", param="input")
    if item.get("type") == "function_call_output" and _is_text(item.get("output")):
        return {**item, "output": _joined(item["output"])}
    if item.get("role") == "assistant" and _is_text(item.get("content")):
        text = {"type": "output_text", "text": _joined(item["content"]), "annotations": []}
        return {**item, "content": [text]}
    return item


def _has_system(items: Any) -> bool:
    """Tell whether the caller has a word of the operator's kind among a response's items."""
    turns = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    return any(turn.get("role") in ("system", "developer") for turn in turns)


def _is_text(parts: Any) -> bool:
    types = ("input_text", "output_text", "refusal")
    return isinstance(parts, list) and all(_of_type(part, *types) for part in parts)


def _of_type(part: Any, *types: str) -> bool:
    return isinstance(part, dict) and part.get("type") in types


def _joined(parts: list[dict[str, Any]]) -> str:
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in parts)


def _sample(body: dict[str, Any], *, stream: bool) -> Ranking | None:
    """Translate what vLLM's server does not take, or not any more.

    Raises:
        InvalidInput: a value is refused, or has no effect.
    """
    asked = Sampling.read({name: body[name] for name in body.keys() & (SAMPLED | GONE)}, holder="")
    for name in OURS:
        body.pop(name, None)
    if body.get("echo") and "logprobs" in body and "" in _prompts(body):
        message = "an empty prompt has no tokens whose log probabilities could be echoed"
        raise InvalidInput(f"prompt: {message}", param="prompt")
    if structured := asked.vllm.get(STRUCTURED):
        _refuse_private(structured)
        body[STRUCTURED] = structured
    if not asked.ranked:
        return None
    if stream:
        asked.refuse_stream(holder="")
    asked.refuse_greedy(body.get("temperature"), holder="")
    asked.refuse_ignored(_ignored(body), holder="")
    return Ranking.begin(body, asked)


def _ignored(body: dict[str, Any]) -> list[str]:
    """Return the parameters that a beam search ignores, and whose values ask for something."""
    names = sorted(body.keys() & BEAM_SEARCH_IGNORES.keys())
    return [name for name in names if body[name] and body[name] != BEAM_SEARCH_IGNORES[name]]


def _prompts(body: dict[str, Any]) -> list[Any]:
    prompt = body.get("prompt")
    return prompt if isinstance(prompt, list) else [prompt]


def _refuse_private(structured: dict[str, Any]) -> None:
    for name in structured:
        if name.startswith("_"):
            raise InvalidInput(f"{STRUCTURED}: unknown key {name!r}", param=STRUCTURED)


def _tell_unknown(name: str, path: str, request_id: str) -> None:
    if name not in _told and len(_told) < MOST_TOLD:
        _told.add(name)
        log.warning("request %s: %r is no parameter of %s: no effect", request_id, name[:64], path)
