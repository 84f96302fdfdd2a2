"""Refused inputs of jobs, each with its message and the parameter that it names."""

import math
from collections.abc import Iterator
from typing import Any

from worker.dialects import ACCEPTED_INPUTS

CHAT = "/v1/chat/completions"
TURN = {"role": "user", "content": "Hi"}
SECRET = "my secret prompt"

Payload = dict[str, Any]

RAW: Payload = {"prompt": "Hi"}
LISTED: Payload = {"prompts": ["a", "b"]}
LISTED_EACH: Payload = {**LISTED, "sampling_params": [{}, {}]}
OPENAI: Payload = {"openai_route": CHAT}
ROUTE: Payload = {"route": CHAT}
LLM_ENGINE: Payload = {"format": "llm_engine", "prompt": "Hi"}
BATCH: Payload = {"format": "llm_engine", "prompts": ["a", "b"]}
BEAM: Payload = {"use_beam_search": True}


def with_params(**params: Any) -> Payload:
    return {**RAW, "sampling_params": params}


# Unknown keys: the form, the key, the message.
MEANT = "did you mean {!r}?".format
OPENAI_FORM = '{"openai_route": "/v1/chat/completions", "openai_input": {"messages": [...]}}'
SCHEMA_FORM = '{"sampling_params": {"structured_outputs": {"json": {...}}}}'
UNKNOWN: list[tuple[Payload, str, str]] = [
    (RAW, "strem", MEANT("stream")),
    (RAW, "zzz", ""),
    (LISTED, "zzz", ""),
    (LISTED_EACH, "zzz", ""),
    (ROUTE, "methd", MEANT("method")),
    (OPENAI, "prompt", ""),
    (OPENAI, "openai_inptu", MEANT("openai_input")),
    (RAW, "sampling_param", MEANT("sampling_params")),
    (LISTED, "sampling_param", MEANT("sampling_params")),
    (RAW, "temprature", MEANT("temperature")),
    (LISTED, "max_new_tokens", MEANT("max_tokens")),
    (RAW, "max_completion_tokens", "raw jobs have max_tokens"),
    (RAW, "priority", "requests of the OpenAI API have it, if SCHEDULING_POLICY=priority"),
    (RAW, "response_format", f"a schema is {SCHEMA_FORM}"),
    (RAW, "use_openai_format", f"answers of the OpenAI API come from {OPENAI_FORM}"),
    (LLM_ENGINE, "max_tokens", MEANT("max_new_tokens")),
    (LLM_ENGINE, "stop_sequence", MEANT("stop_sequences")),
    *((LLM_ENGINE, key, "") for key in ("sampling_params", "messages", "n", "logprobs")),
]

# Wrong values: the form, the key, the message, the values.
BOOLEAN = "Input should be a valid boolean"
INTEGER = "Input should be a valid integer"
NUMBER = "Input should be a valid number"
FINITE = "Input should be a finite number"
TEXT = "Input should be a valid string"
LIST = "Input should be a valid list"
OBJECT = "Input should be a valid dictionary"
EMPTY = "List should have at least 1 item after validation, not 0"
AT_LEAST = "Input should be greater than or equal to {}".format
AT_MOST = "Input should be less than or equal to {}".format
PROMPT = "a text, or a list of token ids; prompts takes a list of prompts"
ITEMS = "a list of 1 to 10,000 items"
VALUES: list[tuple[Payload, str, str, list[Any]]] = [
    ({}, "prompt", PROMPT, [5, [SECRET], [], [-1], [True], [1.0], {}]),
    ({}, "messages", LIST, [SECRET]),
    ({}, "messages", EMPTY, [[]]),
    (RAW, "stream", BOOLEAN, [SECRET, 1]),
    (RAW, "format", "Input should be 'raw' or 'llm_engine'", ["other", "LLM_ENGINE", 7, [SECRET]]),
    (RAW, "max_batch_size", INTEGER, [SECRET, "5", 1.5, True]),
    (RAW, "max_batch_size", AT_LEAST(0), [-1]),
    (RAW, "min_batch_size", AT_LEAST(0), [-0.5]),
    (RAW, "min_batch_size", FINITE, [math.nan]),
    (RAW, "sampling_params", f"{OBJECT} or instance of Sampling", [[SECRET], "n", 7, True]),
    ({}, "route", TEXT, [[SECRET]]),
    ({}, "openai_route", TEXT, [[SECRET]]),
    (OPENAI, "openai_input", OBJECT, [[SECRET]]),
    (ROUTE, "body", OBJECT, [SECRET]),
    ({}, "prompts", ITEMS, [[], "", "abc", {}, 7, True]),
    ({}, "messages_list", ITEMS, [[], {"0": "a"}]),
    ({}, "prompts", ITEMS, [["a"] * 10_001]),
    (LISTED, "sampling_params", f"{OBJECT} or instance of Sampling", ["n"]),
    (LISTED, "sampling_params", "0 of them for 2 prompts", [[]]),
    (LISTED, "sampling_params", "3 of them for 2 prompts", [[{}] * 3]),
    (LISTED, "use_tqdm", BOOLEAN, [1, "true"]),
    (LISTED, "max_batch_size", AT_LEAST(0), [-1]),
    (LISTED_EACH, "model", TEXT, [7]),
    (LLM_ENGINE, "prompt", TEXT, [7, ["a"]]),
    (LLM_ENGINE, "max_new_tokens", AT_LEAST(1), [0]),
    (LLM_ENGINE, "temperature", AT_LEAST(0), [-0.1]),
    (LLM_ENGINE, "temperature", AT_MOST(1), [1.1, math.nan]),
    (LLM_ENGINE, "temperature", NUMBER, ["0", True]),
    (LLM_ENGINE, "presence_penalty", AT_LEAST(0), [-0.1]),
    (LLM_ENGINE, "frequency_penalty", AT_MOST(2), [2.1]),
    (LLM_ENGINE, "top_k", AT_LEAST(-1), [-2]),
    (LLM_ENGINE, "top_p", "Input should be greater than 0", [0]),
    (LLM_ENGINE, "top_p", AT_MOST(1), [1.1]),
    (LLM_ENGINE, "stop_sequences", LIST, ["a"]),
    (BATCH, "prompts", LIST, ["Hi"]),
    (BATCH, "prompts", ITEMS, [[]]),
]
# Wrong sampling parameters; messages have the name of the containing object first.
BEAM_ONLY = "it has an effect in beam search only: set use_beam_search, too"
ALL_OF_IT = "vLLM's beam search never stops early: use false or 'never'"
PARAMS: list[tuple[Payload, str, str, list[Any]]] = [
    ({}, "n", AT_LEAST(1), [0, -1]),
    ({}, "n", AT_MOST(256), [257]),
    ({}, "n", INTEGER, [1.0, "2", True, [1], {}]),
    ({}, "best_of", AT_MOST(256), [257]),
    ({}, "use_beam_search", BOOLEAN, [0, 1, "true", []]),
    (BEAM, "length_penalty", NUMBER, ["1.0", True]),
    (BEAM, "length_penalty", FINITE, [math.nan, math.inf, -math.inf]),
    (BEAM, "early_stopping", "Input should be False or 'never'", ["always", "false", 1, []]),
    (BEAM, "early_stopping", ALL_OF_IT, [True]),
    ({}, "early_stopping", ALL_OF_IT, [True]),
    ({}, "early_stopping", BEAM_ONLY, ["never"]),
    ({}, "length_penalty", BEAM_ONLY, [2]),
    ({}, "guided_decoding", "an object", ["json", [], True, 7]),
]
# Parameters that vLLM has removed: the key, its replacement, the input.
BACKEND = "vLLM has one backend for the whole endpoint: STRUCTURED_OUTPUTS_CONFIG sets it"
PROCESSORS = "vLLM has them for the whole endpoint: LOGITS_PROCESSORS sets them"
SHORTER = "vLLM does not cut prompts while it samples: send a shorter one"
REMOVED: list[tuple[str, str, dict[str, Any]]] = [
    ("backend", BACKEND, with_params(backend="x")),
    ("backend", BACKEND, with_params(guided_decoding={"backend": "x"})),
    ("guided_backend", BACKEND, with_params(guided_options_request={"guided_backend": "x"})),
    ("guided_decoding_backend", BACKEND, with_params(guided_decoding_backend="x")),
    ("guided_decoding_backend", BACKEND, {**RAW, "guided_decoding_backend": "x"}),
    (
        "guided_decoding_backend",
        BACKEND,
        with_params(guided_decoding_backend="x", guided_regex="a", structured_outputs={}),
    ),
    ("backend", BACKEND, with_params(structured_outputs={"regex": "a", "backend": "x"})),
    ("logits_processors", PROCESSORS, with_params(logits_processors=["x"])),
    ("truncate_prompt_tokens", SHORTER, with_params(truncate_prompt_tokens=5)),
    ("truncate_prompt_tokens", SHORTER, {**LISTED, "truncate_prompt_tokens": 5}),
]

# More than one constraint in a request: the first is the parameter of the error.
SEVERAL: list[tuple[list[str], dict[str, Any]]] = [
    (["guided_json", "guided_regex"], with_params(guided_json={}, guided_regex="")),
    (["guided_json", "guided_regex"], {**LISTED, "guided_json": {}, "guided_regex": "a"}),
    (["guided_json", "guided_regex"], {**LISTED_EACH, "guided_json": {}, "guided_regex": "a"}),
    (["guided_choice", "guided_grammar"], with_params(guided_choice=["a"], guided_grammar="a")),
    (
        ["guided_json_object", "guided_regex"],
        with_params(guided_json_object=True, guided_regex="a"),
    ),
    (
        ["guided_json", "structured_outputs.regex"],
        {**RAW, "sampling_params": {"guided_json": {}}, "structured_outputs": {"regex": "a"}},
    ),
    (
        ["guided_decoding.choice", "guided_options_request.guided_json"],
        with_params(guided_decoding={"choice": []}, guided_options_request={"guided_json": {}}),
    ),
    (
        ["structured_outputs.regex", "structured_outputs.structural_tag"],
        with_params(structured_outputs={"regex": "a", "structural_tag": "b"}),
    ),
]
BOTH: dict[str, Any] = {
    "guided_json": {},
    "guided_whitespace_pattern": " ",
    "structured_outputs": {"regex": "a"},
    "return_token_log_probs": True,
    "temperature": 0.7,
    "stop": ["a"],
}


def turn(content: Any, role: Any = "user") -> Payload:
    return {"messages": [{"role": role, "content": content}]}


# Errors in nested values: the parameter, the message, the input. Only the first error in a list is
# reported: a report of all would take seconds and gigabytes.
NO_UNICODE = f"{TEXT}, unable to parse raw data as a unicode string"
REPEATED = "200 times for as many sampling_params it has 1,004,000 characters, at most 1,000,000"
EACH_OF_200: Payload = {"prompts": ["a"] * 200, "sampling_params": [{}] * 200}
EITHER = "either a prompt or prompts"
PLACES: list[tuple[str, str, Payload]] = [
    ("input", NO_UNICODE, {**RAW, "\ud83d": 1}),
    (
        "prompt",
        f"{PROMPT}; stream: {BOOLEAN}; unknown key 'a'",
        {"prompt": 5, "stream": "", "a": 1},
    ),
    ("messages.0.role", "Field required", {"messages": [{}] * 9_999}),
    ("messages.0.role", TEXT, turn(SECRET, role=5)),
    ("messages.0.content.0", OBJECT, turn([5] * 9_999)),
    ("messages.0.content.0.text", TEXT, turn([{"type": "text"}])),
    ("messages.0.content.0.text", TEXT, turn([{"type": "text", "text": [SECRET]}])),
    ("messages.0.content", TEXT, turn({"text": SECRET})),
    ("tools.0", OBJECT, {**RAW, "tools": [0] * 99}),
    ("guided_regex", REPEATED, {**EACH_OF_200, "guided_regex": "a" * 5_000}),
    ("stop_sequences.0", TEXT, {**LLM_ENGINE, "stop_sequences": [0] * 9_999}),
    ("guided_choice.0", TEXT, {**LLM_ENGINE, "guided_choice": [1]}),
    ("input", EITHER, {**LLM_ENGINE, "prompt": None}),
    ("input", EITHER, {**LLM_ENGINE, "prompts": ["b"]}),
]

# Other messages: the parameter, the whole message, the input.
NO_SHAPE = f"The input has none of the forms that this worker accepts; {ACCEPTED_INPUTS}"
NO_SHAPES: list[Any] = [{}, None, ["prompt"], "prompt", {"prompt": None}, {"openai_input": {}}]
MANY_WRONG = f"more than 100 items are wrong; item 101: prompt: {PROMPT}"
PATTERN = "structured_outputs.whitespace_pattern"
TWO_VALUES = (
    f"sampling_params: guided_whitespace_pattern and {PATTERN} set the same constraint to different"
    " values"
)
TWO_PATTERNS = with_params(
    guided_whitespace_pattern="a", structured_outputs={"regex": "x", "whitespace_pattern": "b"}
)
ONE_SHAPE = "messages and messages_list and prompts: one of them, not more"
ONE_KIND = "an answer can be constrained by one of guided_json, guided_regex, not more"
OF_N = "sampling_params.best_of: at least n, which are chosen from that many"
TWO_MISTAKES = f"sampling_params.n: {AT_LEAST(1)}; sampling_params.best_of: {INTEGER}"
OUTSIDE = f"sampling_params.return_token_log_probs: {BOOLEAN}"
NO_OBJECT = f"sampling_params: {OBJECT} or instance of Sampling"
MESSAGES: list[tuple[str | None, str, Any]] = [
    *((None, NO_SHAPE, payload) for payload in NO_SHAPES),
    ("promt", "unknown key 'promt': did you mean 'prompt'?", {"promt": "Hi"}),
    ("z" * 65, f"unknown key {'z' * 64!r}...", {**RAW, "z" * 65: 1}),
    ("prompt", "prompt and prompts: one of them, not more", {**LISTED, "prompt": "a"}),
    ("messages", ONE_SHAPE, {**LISTED, "messages": [TURN], "messages_list": [[TURN]]}),
    ("prompt", MANY_WRONG, {"prompts": ["a", *[7] * 101]}),
    ("best_of", OF_N, with_params(n=256, best_of=255)),
    ("n", TWO_MISTAKES, with_params(best_of="2", n=0)),
    ("return_token_log_probs", OUTSIDE, {**RAW, "return_token_log_probs": "yes"}),
    ("sampling_params", NO_OBJECT, {**RAW, "temperature": 0, "sampling_params": "n"}),
    (PATTERN, TWO_VALUES, TWO_PATTERNS),
    ("guided_json", ONE_KIND, {**LLM_ENGINE, "guided_json": {}, "guided_regex": "a"}),
]


def refused_cases() -> Iterator[tuple[str | None, str, Any]]:
    """Yield the parameter, the message and the input of each case."""
    for base, key, remedy in UNKNOWN:
        yield key, f"unknown key {key!r}: {remedy}".removesuffix(": "), {**base, key: 1}
    for base, key, message, values in VALUES:
        yield from ((key, f"{key}: {message}", {**base, key: one}) for one in values)
    for base, key, message, values in PARAMS:
        name = f"sampling_params.{key}"
        yield from (
            (key, f"{name}: {message}", with_params(**base, **{key: one})) for one in values
        )
    for key, instead, payload in REMOVED:
        yield key, f"sampling_params: {key} is gone: {instead}", payload
    for keys, payload in SEVERAL:
        message = (
            f"sampling_params: an answer can be constrained by one of {', '.join(keys)}, not more"
        )
        yield keys[0], message, payload
    for key, value in BOTH.items():
        message = f"{key} is set both in sampling_params and next to it"
        yield key, message, {**RAW, "sampling_params": {key: value}, **{key: value}}
    yield from ((name, f"{name}: {message}", payload) for name, message, payload in PLACES)
    yield from MESSAGES
