"""The bodies of requests, prepared for vLLM's server.

Parameters that other servers have, or that vLLM once had, are translated or refused by name.
Those that callers must not set are refused. Unknown ones are passed on and logged.
"""

import logging
import math
from dataclasses import dataclass
from typing import Any

from worker.chunking import ROOM_BYTES
from worker.dialects.openai.ranking import Ranking
from worker.engine import Engine
from worker.errors import InvalidInput
from worker.job import OpenAIJob
from worker.job.sampling import BEAM_SEARCH_IGNORES, OUTSIDE, Sampling
from worker.limits.parameters import distinct
from worker.limits.spelling import REPLACED, STRUCTURED
from worker.limits.table import Checked, check
from worker.routes.route import Route
from worker.settings import Settings
from worker.validation import LONGEST_KEY, unknown_key, without_nulls

log = logging.getLogger(__name__)

# Parameters that are checked, and some translated, as on the raw path.
SAMPLED = {"n", "best_of", "use_beam_search", "length_penalty", "early_stopping"} | (
    OUTSIDE - {"return_token_log_probs"}
)
# Those among them that vLLM's server does not have.
OURS = SAMPLED - {"n", "use_beam_search", "length_penalty", STRUCTURED}

# Parameters that vLLM's server has dropped, refused with what replaces them.
GONE = REPLACED.keys() - {"truncate_prompt_tokens"}

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
    body = distinct(without_nulls(job.body or {}))
    known = engine.keys(route.path) or frozenset()
    room = ROOM_BYTES if job.one_yield and not job.stream else math.inf
    by_priority = engine.model.by_priority
    check(Checked(body, route.shape, settings, room=room, by_priority=by_priority))
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
