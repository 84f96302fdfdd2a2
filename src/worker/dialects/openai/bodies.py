"""The bodies of requests, prepared for vLLM's server.

Parameters that other servers have, or that vLLM once had, are translated or refused by name.
Those that callers must not set are refused. Unknown ones are passed on and logged.
"""

import logging
import math
from dataclasses import dataclass
from typing import Any

from worker import media
from worker.chunking import ROOM_BYTES
from worker.dialects.openai.ranking import Ranking
from worker.engine import Engine
from worker.errors import InvalidInput
from worker.job import OpenAIJob
from worker.job.sampling import BEAM_SEARCH_IGNORES, OUTSIDE, Sampling
from worker.limits.parameters import bounded
from worker.limits.spelling import REPLACED, STRUCTURED
from worker.limits.structured import Bounds
from worker.limits.tools import check_tools
from worker.limits.work import check_work
from worker.routes.route import Route
from worker.settings import Settings
from worker.validation import LONGEST_KEY, unknown_key, without_nulls

log = logging.getLogger(__name__)

# Arguments for plugins of vLLM's sampling, and for what else reads them.
XARGS = "vllm_xargs"

# Parameters that are checked, and some translated, as on the raw path.
SAMPLED = {"n", "best_of", "use_beam_search", "length_penalty", "early_stopping"} | (
    OUTSIDE - {"return_token_log_probs"}
)
# Those among them that vLLM's server does not have.
OURS = SAMPLED - {"n", "use_beam_search", "length_penalty", STRUCTURED}

# Parameters that vLLM's server has dropped, refused with what replaces them.
GONE = REPLACED.keys() - {"truncate_prompt_tokens"}

# Encodings of embeddings that no answer of ours can hold, since answers are JSON.
BINARY = ("bytes", "bytes_only")

# Items of a list: vLLM's checks keep an error for every alternative of every wrong item.
MOST_ITEMS = 2_048
# How deep nested lists are checked: as deep as a message's parts.
DEPTH = 4

# How many unknown keys are logged, and remembered as logged: callers can invent any number.
MOST_LOGGED = 100
_logged: set[str] = set()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A body for vLLM's server, and how the choices of its answer are ranked, if they are."""

    body: dict[str, Any] | None
    ranking: Ranking | None = None

    def best(self, answer: Any) -> Any:
        """Return an answer of vLLM's server with the choices for the caller only."""
        return answer if self.ranking is None else self.ranking.best(answer)


def prepare(
    job: OpenAIJob, route: Route, engine: Engine, request_id: str, settings: Settings
) -> Prepared:
    """Prepare the body of a request to one of vLLM's routes; the job's own stays as it is.

    Raises:
        InvalidInput: naming the parameter.
    """
    body = without_nulls(job.body or {})
    known = engine.keys(route.path) or frozenset()
    media.refuse(body, route.path)
    _refuse_long(body)
    _refuse_not_allowed(body, engine, settings)
    if body.get("encoding_format") in BINARY:
        message = "encoding_format: float or base64, since answers are JSON"
        raise InvalidInput(message, param="encoding_format")
    check_tools(body)
    body = bounded(body, holder="")
    check_work(body, room=ROOM_BYTES if job.one_yield and not job.stream else math.inf)
    Bounds.of(settings).check(body)
    body.setdefault("model", engine.model.names[0])
    if route.complete:
        route.complete(body, job, settings.system_prompt)
    if route.temperature is not None and not body.get("use_beam_search"):
        default = engine.model.temperature
        body.setdefault("temperature", route.temperature if default is None else default)
    ranking = _sample(body, stream=job.stream) if "n" in known else None
    if not engine.model.reasons and not settings.strict_requests:
        _drop_thinking(body, route.path, request_id)
    unknown = sorted(body.keys() - known)
    if unknown and settings.strict_requests:
        raise InvalidInput(unknown_key(unknown[0], known), param=unknown[0])
    for name in unknown:
        _log_unknown(name, route.path, request_id)
    if route.response_id is not None:
        body["request_id"] = route.response_id.format(request_id)
    return Prepared(body, ranking)


def _refuse_long(value: Any, name: str = "", depth: int = DEPTH) -> None:
    """Refuse lists that vLLM would take long to check; lists of token ids it checks quickly."""
    if isinstance(value, list) and set(map(type, value)) == {int}:
        return
    if isinstance(value, list) and len(value) > MOST_ITEMS:
        message = f"{name}: {len(value):,} items, at most {MOST_ITEMS:,}"
        raise InvalidInput(message, param=name)
    if depth and isinstance(value, dict):
        for key, nested in value.items():
            _refuse_long(nested, name or key, depth - 1)
    elif depth and isinstance(value, list):
        for item in value:
            _refuse_long(item, name, depth - 1)


def _refuse_not_allowed(body: dict[str, Any], engine: Engine, settings: Settings) -> None:
    """Refuse what only an operator can allow."""
    xargs = body.get(XARGS)
    for name in sorted(xargs.keys() - {*settings.allowed_xargs}) if isinstance(xargs, dict) else ():
        place = f"{XARGS}.{name[:LONGEST_KEY]}"
        message = "it is not among those that ALLOWED_XARGS names"
        raise InvalidInput(f"{place}: {message}", param=place)
    structured = body.get(STRUCTURED)
    for name in structured if isinstance(structured, dict) else ():
        if name.startswith("_"):
            raise InvalidInput(f"{STRUCTURED}: unknown key {name!r}", param=STRUCTURED)
    if body.get("priority") and not engine.model.by_priority:
        message = "requests are answered in their order: SCHEDULING_POLICY=priority heeds it"
        raise InvalidInput(f"priority: {message}", param="priority")


def _sample(body: dict[str, Any], *, stream: bool) -> Ranking | None:
    """Translate the sampling parameters that vLLM's server does not have, or has no longer.

    Raises:
        InvalidInput: a value is refused, or has no effect.
    """
    sampling = Sampling.read(
        {name: body[name] for name in body.keys() & (SAMPLED | GONE)}, holder=""
    )
    for name in OURS:
        body.pop(name, None)
    if body.get("echo") and "logprobs" in body and "" in _prompts(body):
        message = "an empty prompt has no tokens whose log probabilities could be echoed"
        raise InvalidInput(f"prompt: {message}", param="prompt")
    if structured := sampling.vllm.get(STRUCTURED):
        body[STRUCTURED] = structured
    if not sampling.ranked:
        return None
    if stream:
        sampling.refuse_stream(holder="")
    sampling.refuse_greedy(body.get("temperature"), holder="")
    sampling.refuse_ignored(_ignored(body), holder="")
    return Ranking.begin(body, sampling)


def _ignored(body: dict[str, Any]) -> list[str]:
    """Return the parameters that a beam search ignores, and whose values ask for something."""
    names = sorted(body.keys() & BEAM_SEARCH_IGNORES.keys())
    return [name for name in names if body[name] and body[name] != BEAM_SEARCH_IGNORES[name]]


def _drop_thinking(body: dict[str, Any], path: str, request_id: str) -> None:
    """Drop Anthropic's budget for reasoning, which agents send to every model.

    vLLM refuses one where it can't tell the reasoning from the answer (REASONING_PARSER).
    """
    thinking = body.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") == "enabled":
        del body["thinking"]
        _log_unknown("thinking", path, request_id)


def _prompts(body: dict[str, Any]) -> list[Any]:
    prompt = body.get("prompt")
    return prompt if isinstance(prompt, list) else [prompt]


def _log_unknown(name: str, path: str, request_id: str) -> None:
    # What can't be a parameter's name is a caller's text, which no log may show.
    name = repr(name[:LONGEST_KEY]) if name.isidentifier() else "a key"
    if name not in _logged and len(_logged) < MOST_LOGGED:
        _logged.add(name)
        log.warning("request %s: %s is no parameter of %s: no effect", request_id, name, path)
