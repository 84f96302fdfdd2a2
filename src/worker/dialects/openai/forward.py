"""Forwards requests to vLLM's own server in this process, and translates its errors.

An engine that serves the route is chosen, ``prepare_body`` makes a body that vLLM reads, and vLLM's
app is called. Parameters of other servers or of earlier versions of vLLM are translated, or refused
by name. Parameters that callers must not set are refused. Unknown parameters are forwarded and
logged. The app's response becomes pieces: the events of a stream, or the whole body. Until a stream
has content, its request may still be refused, or run again on a new engine.
"""

import contextlib
import json
import logging
import math
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from itertools import count
from typing import Any, Self

from worker.asgi import ResponseHead
from worker.bridge import pass_item
from worker.chunking import RESULT_LIMIT_BYTES, Piece, current_schedule
from worker.engine import Engine, Engines
from worker.errors import (
    MAX_MESSAGE_LENGTH,
    InternalError,
    InvalidInput,
    NoEngine,
    RefusedByEngine,
    UnknownRoute,
    WorkerError,
    field_error,
    replace_options_by_settings,
)
from worker.job import OpenAIJob
from worker.job.sampling_params import (
    BEAM_SEARCH_IGNORED,
    BEAM_SEARCH_IGNORES,
    BEAM_SEARCH_NEEDED,
    BEAM_SEARCH_ONLY,
    Sampling,
)
from worker.json_lines import escape_line_breaks
from worker.limits.inputs import check_request
from worker.limits.parameters import (
    BACKEND_ADVICE,
    FORMER_BACKEND,
    GUIDED_KEYS,
    GUIDED_OBJECTS,
    REMOVED_PARAMETERS,
    STRUCTURED_OUTPUTS,
    remove_duplicate_items,
)
from worker.media.walker import drop_empty_denied_keys
from worker.record import Usage
from worker.routes import events
from worker.routes.answer import Answer, json_size, retry_before_first_piece
from worker.routes.models import check_model_ability, describe_ability
from worker.routes.route import Route
from worker.settings import Settings
from worker.validation import MAX_KEY_LENGTH, drop_nulls, unknown_key_message

log = logging.getLogger(__name__)

# Parameters that are checked, and in part translated, in the same way as those of raw jobs.
SAMPLING_KEYS = (
    {"n", "best_of", "use_beam_search", "length_penalty", "early_stopping", FORMER_BACKEND}
    | GUIDED_KEYS
    | GUIDED_OBJECTS
)
# The keys of ``SAMPLING_KEYS`` that vLLM's server does not have.
WORKER_KEYS = SAMPLING_KEYS - {"n", "use_beam_search", "length_penalty", STRUCTURED_OUTPUTS}

# Keys with a constraint that the text must match.
CONSTRAINT_KEYS = {"response_format", STRUCTURED_OUTPUTS}

# Parameters that vLLM's server has removed. The refusal names their replacement.
REMOVED_KEYS = REMOVED_PARAMETERS.keys() - {"truncate_prompt_tokens"}

# Keys that receipts contain, and that vLLM's server doesn't have on every route.
RECEIPT_KEYS = {"user", "metadata"}

# Routes with tools that the API's own servers run, and types of tools that the caller runs.
HOSTED_TOOLS_PATHS = ("/v1/responses", "/v1/messages", "/v1/messages/count_tokens")
CALLER_TOOL_TYPES = ("function", "custom", "namespace")

# Maximum number of unknown keys that are logged and remembered; callers can invent more.
MAX_LOGGED_KEYS = 100
_logged_keys: set[str] = set()

# Strings in vLLM's messages that precede the refused value, which may be a prompt.
REFUSED_VALUE_MARKERS = (" (parameter=", " [type=", "\n    For further information visit ")


def make_answer(
    job: OpenAIJob, route: Route, request_id: str, engines: Engines, settings: Settings
) -> Answer[Any]:
    """Return vLLM's answer: its pieces are the events of a stream, or the body of a response."""
    is_stream = job.stream and route.streams
    usage = Usage()

    async def pieces() -> AsyncGenerator[Piece[Any], None]:
        engine = _choose_engine(route.path, job.body, engines)
        call = partial(_call_engine, engine, job, route, request_id, settings, usage)
        async with contextlib.aclosing(retry_before_first_piece(engine, request_id, call)) as parts:
            async for piece in parts:
                yield piece

    def render(values: list[Any]) -> Any:
        if not is_stream:
            return values[0]
        return "".join(values) if settings.raw_openai_output else events.decode_event_data(values)

    return Answer(
        stream=is_stream,
        pieces=pieces,
        render=render,
        render_error=lambda error: render(route.error_format.make_last_events(error)),
        render_receipt=(lambda receipt: render(route.error_format.make_receipt_events(receipt)))
        if is_stream
        else None,
        merges_outputs=(job.stream_events or settings.stream_events) == "chunk",
        usage=usage,
    )


def _choose_engine(path: str, body: dict[str, Any] | None, engines: Engines) -> Engine:
    """Return the engine that serves a route; if several do, the one with the body's model."""
    if not engines.has_engine:
        raise NoEngine
    able_engines = [engine for engine in engines if engine.body_keys(path) is not None]
    if not able_engines:
        abilities = "; ".join(describe_ability(engine.model) for engine in engines)
        message = f"No model of this worker answers {path}: {abilities}."
        if "generate" in engines.main_engine.model.tasks and len([*engines]) == 1:
            message += " To serve an embedding model in addition, set EMBEDDING_MODEL_NAME."
        raise UnknownRoute(message)
    name = (body or {}).get("model")
    check_model_ability(name, able_engines, engines, path)
    return next((engine for engine in able_engines if name in engine.model.names), able_engines[0])


async def _call_engine(
    engine: Engine, job: OpenAIJob, route: Route, request_id: str, settings: Settings, usage: Usage
) -> AsyncGenerator[Piece[Any], None]:
    is_stream = job.stream and route.streams
    body = ranking = None
    if route.method == "POST":
        body, ranking = prepare_body(job, route, engine, request_id, settings)
        name = body["model"]
        if isinstance(name, str) and name not in engine.model.names:
            await engine.load_adapter(name)
    pass_piece = pass_item.get(None)
    splitter = events.EventSplitter()
    has_begun = False
    # Weights of the events that wait to be yielded. They are known only when vLLM sends an event.
    weights: deque[int] = deque()

    def take_part(part: bytes, is_next: bool) -> bool:
        """Pass an inner event of a stream that has begun directly to the stream's reader."""
        if has_begun and is_next and pass_piece and (event := splitter.decode_inner_event(part)):
            pass_piece(_to_piece(event, _take_weight(event)))
            return True
        if is_stream:
            texts = part.decode(errors="replace").split(events.EVENT_END)[:-1]
            weights.extend(_take_weight(text + events.EVENT_END) for text in texts)
        return False

    parts = engine.call(route.path, body, request_id, usage, route.shape, take_part)
    async with contextlib.aclosing(parts):
        async for value in _read_response(parts, splitter, request_id):
            weight = weights.popleft() if is_stream and weights else 1
            if not is_stream or value.startswith(events.COMPLETED_PREFIXES):
                _set_token_counts(usage, value)
            # The closing event has no JSON data, so it is omitted from a list of decoded events. A
            # receipt precedes it.
            if value != events.DONE_EVENT or (settings.raw_openai_output and not job.receipt):
                yield _to_piece(ranking.select_best(value) if ranking else value, weight)
                has_begun = has_begun or (is_stream and events.has_content(value))


def _take_weight(event: str) -> int:
    """Return the tokens in the event that vLLM has just made; each call is for the next event."""
    if not events.has_content(event):
        return 0
    schedule = current_schedule.get(None)
    return schedule.take_event_weight() if schedule else 1


def _to_piece(value: Any, weight: int) -> Piece[Any]:
    return Piece(value, weight=weight, size=json_size(value))


@dataclass(frozen=True, slots=True)
class Ranking:
    """Implements ``best_of``: selects the best ``n`` of ``num_candidates`` choices of each prompt.

    vLLM ranks the choices of a beam search. Sampled choices are ranked here by the sum of the log
    probabilities of their tokens, which are returned only if the caller requested them.
    """

    n: int
    num_candidates: int
    is_ranked_by_vllm: bool
    returns_logprobs: bool

    @classmethod
    def request_candidates(cls, body: dict[str, Any], sampling: Sampling) -> Self:
        """Make a body request all candidates and their log probabilities; return the ranking."""
        body["n"] = sampling.num_candidates
        logprobs = body.get("logprobs")
        returns_logprobs = logprobs is not None and logprobs is not False
        if not sampling.use_beam_search and not returns_logprobs:
            # ``logprobs`` is a boolean in chat completions, and a number in completions.
            body["logprobs"] = True if "messages" in body else 0
        return cls(sampling.n, sampling.num_candidates, sampling.use_beam_search, returns_logprobs)

    def select_best(self, response: dict[str, Any]) -> dict[str, Any]:
        """Return a response with only the best choices for each prompt, renumbered from 0."""
        choices = sorted(response["choices"], key=lambda choice: int(choice["index"]))
        best: list[dict[str, Any]] = []
        for start in range(0, len(choices), self.num_candidates):
            group = choices[start : start + self.num_candidates]
            if not self.is_ranked_by_vllm:
                group.sort(key=_total_logprob, reverse=True)
            best += group[: self.n]
        if not self.returns_logprobs:
            best = [{**choice, "logprobs": None} for choice in best]
        indices = count()
        return {**response, "choices": [{**choice, "index": next(indices)} for choice in best]}


def _total_logprob(choice: dict[str, Any]) -> float:
    logprobs = choice["logprobs"]
    if "content" in logprobs:
        values = [token["logprob"] for token in logprobs["content"] or []]
    else:
        # The first token of an echoed prompt has no log probability, in any choice.
        values = [value for value in logprobs["token_logprobs"] if value is not None]
    return float(sum(values))


def prepare_body(
    job: OpenAIJob, route: Route, engine: Engine, request_id: str, settings: Settings
) -> tuple[dict[str, Any], Ranking | None]:
    """Return a copy of a job's body that is prepared for one of vLLM's routes.

    Also return the ranking of the response's choices, if they are ranked.
    """
    body = remove_duplicate_items(drop_nulls(drop_empty_denied_keys(job.body or {})))
    is_strict = settings.strict_requests
    known_keys = engine.body_keys(route.path) or frozenset()
    max_bytes = RESULT_LIMIT_BYTES if job.must_fit_result and not job.stream else math.inf
    _drop_ineffective_keys(body, engine, route.path, request_id, is_strict=is_strict)
    check_request(body, route.shape, settings, max_answer_bytes=max_bytes)
    body["model"] = body.get("model") or engine.model.names[0]
    if route.prepare_conversation:
        route.prepare_conversation(body, job, settings.system_prompt)
    if route.default_temperature is not None and not body.get("use_beam_search"):
        default = engine.model.temperature
        body.setdefault("temperature", route.default_temperature if default is None else default)
    ranking = _translate_sampling(body, stream=job.stream) if "n" in known_keys else None
    match body.get("thinking"):
        # Anthropic's limit for reasoning, which coding agents send to every model. vLLM refuses it
        # if it can't separate the reasoning from the answer (REASONING_PARSER).
        case {"type": "enabled"} if not engine.model.has_reasoning and not is_strict:
            del body["thinking"]
            _log_no_effect("thinking", route.path, request_id)
    if route.path in HOSTED_TOOLS_PATHS and not engine.model.has_tool_server:
        _drop_hosted_tools(body, route.path, request_id, is_strict=is_strict)
    unknown_keys = sorted(body.keys() - known_keys - RECEIPT_KEYS)
    if unknown_keys and is_strict:
        raise InvalidInput(unknown_key_message(unknown_keys[0], known_keys), param=unknown_keys[0])
    for name in unknown_keys:
        _log_no_effect(name, route.path, request_id)
    if route.id_format is not None:
        body["request_id"] = route.id_format.format(request_id)
    return body, ranking


def _translate_sampling(body: dict[str, Any], *, stream: bool) -> Ranking | None:
    """Translate a body's sampling parameters in place; return the ranking of its choices, if any.

    Parameters that are wrong, or have no effect, are refused.
    """
    names = SAMPLING_KEYS | REMOVED_KEYS
    if not body.get("use_beam_search"):
        names -= BEAM_SEARCH_ONLY.keys()
    sampling = Sampling.from_params({key: body[key] for key in body.keys() & names}, container="")
    for name in WORKER_KEYS:
        body.pop(name, None)
    prompt = body.get("prompt")
    prompts = prompt if isinstance(prompt, list) else [prompt]
    if body.get("echo") and "logprobs" in body and "" in prompts:
        message = "an empty prompt has no tokens whose log probabilities could be echoed"
        raise field_error("prompt", message)
    if structured := sampling.vllm_params.get(STRUCTURED_OUTPUTS):
        body[STRUCTURED_OUTPUTS] = structured
    if not sampling.is_ranked:
        return None
    if stream:
        sampling.refuse_ranked_stream(container="")
    sampling.refuse_equal_choices(body.get("temperature"), container="")
    # Callers rely on the schema of an answer, so that this is no parameter without an effect.
    constraints = sorted(CONSTRAINT_KEYS & body.keys())
    sampling.refuse_ignored_in_beam_search([one for one in constraints if body[one]], container="")
    return Ranking.request_candidates(body, sampling)


def _drop_ineffective_keys(
    body: dict[str, Any], engine: Engine, path: str, request_id: str, *, is_strict: bool
) -> None:
    """Drop the caller's id of the request, the backend, and a priority if the engine has none.

    These and the parameters that beam search ignores, or that only beam search reads, are logged. A
    strict worker refuses them.
    """
    reasons = {"request_id": "it is the job's id"}
    if not body.get(STRUCTURED_OUTPUTS):
        reasons[FORMER_BACKEND] = BACKEND_ADVICE
    if not engine.model.has_priorities:
        reasons["priority"] = "requests are answered in their order: SCHEDULING_POLICY=priority"
    ignored = {name: body.pop(name) for name in reasons.keys() & body.keys()}
    is_beam_search = bool(body.get("use_beam_search"))
    neutral = BEAM_SEARCH_IGNORES if is_beam_search else BEAM_SEARCH_ONLY
    ignored |= {name: body[name] for name in neutral.keys() & body.keys() - CONSTRAINT_KEYS}
    for name in sorted(ignored):
        if not ignored[name] or ignored[name] == neutral.get(name):
            continue
        if is_strict:
            reason = BEAM_SEARCH_IGNORED if is_beam_search else BEAM_SEARCH_NEEDED
            raise field_error(name, reasons.get(name, reason))
        _log_no_effect(name, path, request_id)


def _drop_hosted_tools(
    body: dict[str, Any], path: str, request_id: str, *, is_strict: bool
) -> None:
    """Drop the tools that OpenAI's or Anthropic's servers run, such as a search of the web.

    Coding agents send them to every model, together with functions that the agents run. Without any
    other tool, or by a strict worker, they are refused.
    """
    tools = body.get("tools")
    if not isinstance(tools, list):
        return
    hosted = [
        tool
        for tool in tools
        if isinstance(tool, dict) and (tool.get("type") or "function") not in CALLER_TOOL_TYPES
    ]
    if hosted and (is_strict or len(hosted) == len(tools)):
        name = repr(str(hosted[0]["type"])[:MAX_KEY_LENGTH])
        message = f"this worker runs no tools such as {name}: send functions, and run them yourself"
        raise field_error("tools", message)
    for tool in hosted:
        _log_no_effect(str(tool["type"]), path, request_id)
    body["tools"] = [tool for tool in tools if tool not in hosted]


def _log_no_effect(name: str, path: str, request_id: str) -> None:
    # A key that is not an identifier may contain a caller's text, which must not be logged.
    label = repr(name[:MAX_KEY_LENGTH]) if name.isidentifier() else "a key"
    if label not in _logged_keys and len(_logged_keys) < MAX_LOGGED_KEYS:
        _logged_keys.add(label)
        log.warning("request %s: %s has no effect on %s", request_id, label, path)


async def _read_response(
    parts: AsyncGenerator[ResponseHead | bytes, None],
    splitter: events.EventSplitter,
    request_id: str,
) -> AsyncGenerator[Any, None]:
    """Yield the events of a stream, or the body of any other response; raise a response's error."""
    head = await anext(parts)
    assert isinstance(head, ResponseHead)  # For the type checker.
    body_parts = (part async for part in parts if isinstance(part, bytes))
    if head.media_type != "text/event-stream":
        body = b"".join([part async for part in body_parts])
        if head.status >= 400:
            error_body = json.loads(body)
            # The error has vLLM's format, or the format of its web framework.
            error = error_body.get("error") or {"message": error_body.get("detail")}
            raise _translate_error(error, head.status, request_id)
        yield json.loads(body) if head.media_type == "application/json" else body.decode()
        return
    announcements: list[str] = []
    has_begun = False
    async for part in body_parts:
        for event in splitter.split_part(part):
            if event.startswith(events.ERROR_PREFIXES):
                raise _translate_error(events.parse_error(event), None, request_id)
            announcements.append(events.name_incomplete(event))
            # Events without content are withheld until content arrives. Until then, the server may
            # refuse the request, or the engine may die, after which the answer is restarted.
            has_begun = has_begun or events.has_content(event)
            while has_begun and announcements:
                yield announcements.pop(0)
    for event in announcements:
        yield event
    if splitter.incomplete:
        yield escape_line_breaks(splitter.incomplete.decode())


def _set_token_counts(usage: Usage, answer: Any) -> None:
    """Set the token counts from a response or the event that completes it, unless already set."""
    if isinstance(answer, str) and answer.startswith(events.COMPLETED_PREFIXES):
        (completed,) = events.decode_event_data([answer])
        answer = completed["response"]
    if not isinstance(answer, dict) or usage.prompt_tokens is not None:
        return
    if counts := answer.get("usage"):
        usage.prompt_tokens = counts.get("prompt_tokens", counts.get("input_tokens"))
        usage.output_tokens = counts.get("completion_tokens", counts.get("output_tokens"))


def _translate_error(error: dict[str, Any], status: int | None, request_id: str) -> WorkerError:
    """Convert an error of vLLM's server; ``status`` is None for an event of a stream."""
    # Anthropic's error format has no code.
    code = status or error.get("code") or HTTPStatus.INTERNAL_SERVER_ERROR
    message = error["message"][:MAX_MESSAGE_LENGTH]
    for marker in REFUSED_VALUE_MARKERS:
        message = message.partition(marker)[0]
    if message.endswith("}"):
        message = message.partition(": {")[0]
    message = replace_options_by_settings(message)
    if code == HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("request %s: vLLM's server answers %s: %s", request_id, code, message)
        return InternalError()
    return RefusedByEngine(message, status=code, param=error.get("param"))
