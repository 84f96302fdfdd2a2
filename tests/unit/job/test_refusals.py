"""Inputs that are refused: the message and the parameter of each, and no value in them."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from worker.errors import InvalidInput
from worker.job import ACCEPTED_INPUTS, SHAPES, parse_input

CHAT = "/v1/chat/completions"
TURN = {"role": "user", "content": "Hi"}
SECRET = "my secret prompt"
FINE_TUNE = "ftjob-" + "a" * 24

Form = Callable[..., dict[str, Any]]


def raw(**keys: Any) -> dict[str, Any]:
    return {"prompt": "Hi", **keys}


def listed(**keys: Any) -> dict[str, Any]:
    return {"prompts": ["a", "b"], **keys}


def listed_each(**keys: Any) -> dict[str, Any]:
    return listed(sampling_params=[{}, {}], **keys)


def openai(**keys: Any) -> dict[str, Any]:
    return {"openai_route": CHAT, **keys}


def route(**keys: Any) -> dict[str, Any]:
    return {"route": CHAT, **keys}


def alone(**keys: Any) -> dict[str, Any]:
    return keys


def llm_engine(**keys: Any) -> dict[str, Any]:
    return {"format": "llm_engine", "prompt": "Hi", **keys}


def batch(**keys: Any) -> dict[str, Any]:
    return {"format": "llm_engine", "prompts": ["a", "b"], **keys}


def sampled(**params: Any) -> dict[str, Any]:
    return raw(sampling_params=params)


def beam(**params: Any) -> dict[str, Any]:
    return sampled(use_beam_search=True, **params)


def tuned(**spec: Any) -> dict[str, Any]:
    return {"fine_tune": spec}


# Unknown keys: the form, the key, what is said of it.
MEANT = "did you mean {!r}?".format
MISPLACED = 'it belongs into sampling_params: {{"sampling_params": {{"{}": ...}}}}'.format
UNKNOWN: list[tuple[Form, str, str]] = [
    (raw, "strem", MEANT("stream")),
    (raw, "zzz", ""),
    (listed, "zzz", ""),
    (listed_each, "zzz", ""),
    (route, "methd", MEANT("method")),
    (openai, "prompt", ""),
    (openai, "openai_inptu", MEANT("openai_input")),
    (raw, "sampling_param", MEANT("sampling_params")),
    (listed, "sampling_param", MEANT("sampling_params")),
    (raw, "best_of", MISPLACED("best_of")),
    (listed, "temperature", MISPLACED("temperature")),
    (raw, "max_new_tokens", f"{MEANT('max_tokens')} {MISPLACED('max_tokens')}"),
    (raw, "priority", "requests of the OpenAI API have it, if SCHEDULING_POLICY=priority"),
    (
        raw,
        "response_format",
        'a schema is {"sampling_params": {"structured_outputs": {"json": {...}}}}',
    ),
    (
        raw,
        "use_openai_format",
        "answers of the OpenAI API come from "
        '{"openai_route": "/v1/chat/completions", "openai_input": {"messages": [...]}}',
    ),
    (llm_engine, "max_tokens", MEANT("max_new_tokens")),
    (llm_engine, "stop_sequence", MEANT("stop_sequences")),
    *((llm_engine, key, "") for key in ("sampling_params", "messages", "n", "logprobs")),
]

# Wrong values: the form, the key, what is said of it, the values.
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
TOO_MANY = "10,001 items, at most 10,000 (MAX_INPUT_ITEMS)"
VALUES: list[tuple[Form, str, str, list[Any]]] = [
    (alone, "prompt", PROMPT, [5, [SECRET], [], [-1], [True], [1.0], {}]),
    (alone, "messages", LIST, [SECRET]),
    (alone, "messages", EMPTY, [[]]),
    (raw, "apply_chat_template", BOOLEAN, [SECRET]),
    (raw, "stream", BOOLEAN, [SECRET, 1]),
    (raw, "model", TEXT, [7]),
    (raw, "format", "Input should be 'raw' or 'llm_engine'", ["other", "LLM_ENGINE", 7, [SECRET]]),
    (raw, "max_batch_size", INTEGER, [SECRET, "5", 1.5, True]),
    (raw, "max_batch_size", AT_LEAST(0), [-1]),
    (raw, "min_batch_size", AT_LEAST(0), [-0.5]),
    (raw, "min_batch_size", FINITE, [math.nan]),
    (raw, "batch_size_growth_factor", FINITE, [math.inf]),
    (raw, "max_batch_delay_ms", AT_LEAST(0), [-1]),
    (raw, "sampling_params", f"{OBJECT} or instance of Sampling", [[SECRET], "n", 7, True]),
    (alone, "route", TEXT, [[SECRET]]),
    (alone, "openai_route", TEXT, [[SECRET]]),
    (openai, "openai_input", OBJECT, [[SECRET]]),
    (route, "body", OBJECT, [SECRET]),
    (route, "method", TEXT, [[SECRET]]),
    (alone, "prompts", ITEMS, [[], "", "abc", {}, 7, True]),
    (alone, "messages_list", ITEMS, [[], {"0": "a"}]),
    (alone, "prompts", TOO_MANY, [["a"] * 10_001]),
    (listed, "sampling_params", f"{OBJECT} or instance of Sampling", ["n"]),
    (listed, "sampling_params", "0 of them for 2 prompts", [[]]),
    (listed, "sampling_params", "3 of them for 2 prompts", [[{}] * 3]),
    (listed, "use_tqdm", BOOLEAN, [1, "true"]),
    (listed, "stream", BOOLEAN, ["yes"]),
    (listed, "max_batch_size", AT_LEAST(0), [-1]),
    (listed, "model", TEXT, [7]),
    (listed_each, "model", TEXT, [7]),
    (llm_engine, "prompt", TEXT, [7, ["a"]]),
    (llm_engine, "stream", BOOLEAN, [1]),
    (llm_engine, "model", TEXT, [7]),
    (llm_engine, "max_new_tokens", AT_LEAST(1), [0]),
    (llm_engine, "max_new_tokens", INTEGER, [1.5, "20", True]),
    (llm_engine, "temperature", AT_LEAST(0), [-0.1]),
    (llm_engine, "temperature", AT_MOST(1), [1.1, math.nan]),
    (llm_engine, "temperature", NUMBER, ["0", True]),
    (llm_engine, "presence_penalty", AT_LEAST(0), [-0.1]),
    (llm_engine, "frequency_penalty", AT_MOST(2), [2.1]),
    (llm_engine, "top_k", AT_LEAST(-1), [-2]),
    (llm_engine, "top_k", INTEGER, [1.5, "1"]),
    (llm_engine, "top_p", "Input should be greater than 0", [0]),
    (llm_engine, "top_p", AT_MOST(1), [1.1]),
    (llm_engine, "stop_sequences", LIST, ["a"]),
    (llm_engine, "return_token_log_probs", BOOLEAN, [1]),
    (llm_engine, "include_stop_str_in_output", BOOLEAN, [1]),
    (llm_engine, "skip_special_tokens", BOOLEAN, [1]),
    (llm_engine, "guided_json", OBJECT, ["{}"]),
    (llm_engine, "guided_regex", TEXT, [["a"]]),
    (llm_engine, "guided_choice", LIST, ["a"]),
    (llm_engine, "guided_grammar", TEXT, [{}]),
    (batch, "prompts", LIST, ["Hi"]),
    (batch, "prompts", ITEMS, [[]]),
    (batch, "prompts", TOO_MANY, [["a"] * 10_001]),
    (batch, "temperature", AT_MOST(1), [2]),
]
# The same of sampling parameters, which messages name after the object that they stand in.
BEAM_ONLY = "it has an effect in beam search only: set use_beam_search, too"
ALL_OF_IT = "vLLM's beam search goes on until no better answer can come: false or 'never'"
PARAMS: list[tuple[Form, str, str, list[Any]]] = [
    (sampled, "n", AT_LEAST(1), [0, -1]),
    (sampled, "n", AT_MOST(256), [257]),
    (sampled, "n", INTEGER, [1.0, "2", True, [1], {}]),
    (sampled, "best_of", AT_LEAST(1), [0]),
    (sampled, "best_of", AT_MOST(256), [257]),
    (sampled, "best_of", INTEGER, [2.0, "2", True]),
    (sampled, "use_beam_search", BOOLEAN, [0, 1, "true", []]),
    (sampled, "return_token_log_probs", BOOLEAN, [1]),
    (raw, "return_token_log_probs", BOOLEAN, ["yes"]),
    (beam, "length_penalty", NUMBER, ["1.0", True]),
    (beam, "length_penalty", "from -10 to 10", [math.nan, math.inf, -math.inf]),
    (beam, "early_stopping", "Input should be False or 'never'", ["always", "false", 1, []]),
    (beam, "early_stopping", ALL_OF_IT, [True]),
    (sampled, "early_stopping", ALL_OF_IT, [True]),
    (sampled, "early_stopping", BEAM_ONLY, ["never"]),
    (sampled, "length_penalty", BEAM_ONLY, [2]),
    (sampled, "guided_decoding", "an object", ["json", [], True, 7]),
    (raw, "structured_outputs", "an object", ["json"]),
]

# What vLLM has dropped: the forms, the key, what replaces it.
BACKEND = "vLLM has one backend for the whole endpoint: STRUCTURED_OUTPUTS_CONFIG sets it"
PROCESSORS = "vLLM has them for the whole endpoint: LOGITS_PROCESSORS sets them"
SHORTER = "vLLM does not cut prompts while it samples: send a shorter one"
GONE: list[tuple[str, str, dict[str, Any]]] = [
    ("backend", BACKEND, sampled(backend="x")),
    ("backend", BACKEND, sampled(guided_decoding={"backend": "x"})),
    ("guided_backend", BACKEND, sampled(guided_options_request={"guided_backend": "x"})),
    ("guided_decoding_backend", BACKEND, sampled(guided_decoding_backend="x")),
    ("guided_decoding_backend", BACKEND, raw(guided_decoding_backend="x")),
    ("logits_processors", PROCESSORS, sampled(logits_processors=[])),
    ("truncate_prompt_tokens", SHORTER, sampled(truncate_prompt_tokens=5)),
]

# Constraints of which a request has more than one: the first is the parameter.
SEVERAL: list[tuple[list[str], dict[str, Any]]] = [
    (["guided_json", "guided_regex"], sampled(guided_json={}, guided_regex="")),
    (["guided_json", "guided_regex"], listed(guided_json={}, guided_regex="a")),
    (["guided_json", "guided_regex"], listed_each(guided_json={}, guided_regex="a")),
    (["guided_choice", "guided_grammar"], sampled(guided_choice=["a"], guided_grammar="a")),
    (["guided_json_object", "guided_regex"], raw(guided_json_object=True, guided_regex="a")),
    (
        ["guided_json", "structured_outputs.regex"],
        raw(sampling_params={"guided_json": {}}, structured_outputs={"regex": "a"}),
    ),
    (
        ["guided_decoding.choice", "guided_options_request.guided_json"],
        sampled(guided_decoding={"choice": []}, guided_options_request={"guided_json": {}}),
    ),
    (
        ["structured_outputs.regex", "structured_outputs.structural_tag"],
        sampled(structured_outputs={"regex": "a", "structural_tag": "b"}),
    ),
]
BOTH: dict[str, Any] = {
    "guided_json": {},
    "guided_whitespace_pattern": " ",
    "structured_outputs": {"regex": "a"},
    "return_token_log_probs": True,
}

# The parameter, the whole message, the input.
PARTS = f"{{0}}.str: {TEXT}; {{0}}.list[dict[str,any]].0: {OBJECT}".format("messages.0.content")
NO_WORDS = "a part of type text has its words under text, as a string"
NO_SHAPE = f"The input is none of the shapes that this worker takes; {ACCEPTED_INPUTS}"
NO_MESSAGE = "messages.0: Input should be a valid dictionary or instance of Message"
ONE_KIND = "an answer is held to one of guided_json, guided_regex, not more"
SOURCES = "fine_tune: one of id, training_file, training_path and rows"

NO_SHAPES: list[Any] = [{}, None, [], ["prompt"], "prompt", 7, {"prompt": None}, {"promt": "Hi"}]


def turn(content: Any, role: Any = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content}]}


OTHERS: list[tuple[str | None, str, Any]] = [
    *((None, NO_SHAPE, payload) for payload in NO_SHAPES),
    ("z" * 200, f"unknown key {'z' * 64!r}...", raw(**{"z" * 200: 1})),
    ("input", f"input: {TEXT}, unable to parse raw data as a unicode string", raw(**{"\ud83d": 1})),
    (
        "prompt",
        f"prompt: {PROMPT}; stream: {BOOLEAN}; unknown key 'zzz'",
        {"prompt": 5, "stream": "yes", "zzz": 1},
    ),
    # Of a list the first mistake alone: a complaint about each would take seconds and gigabytes.
    ("messages.0", NO_MESSAGE, {"messages": [SECRET] * 9_999}),
    ("messages.0.role", "messages.0.role: Field required", {"messages": [{}] * 9_999}),
    ("messages.0.content.str", PARTS, turn([SECRET] * 9_999)),
    ("tools.0", f"tools.0: {OBJECT}", raw(tools=[0] * 99)),
    ("stop_sequences.0", f"stop_sequences.0: {TEXT}", llm_engine(stop_sequences=[0] * 9_999)),
    ("guided_choice.0", f"guided_choice.0: {TEXT}", llm_engine(guided_choice=[1])),
    ("messages.0.role", f"messages.0.role: {TEXT}", turn(SECRET, role=5)),
    ("messages.0.content", f"messages.0.content: {NO_WORDS}", turn([{"type": "text"}])),
    ("messages.0.content", f"messages.0.content: {NO_WORDS}", turn([{"type": "text", "text": []}])),
    ("prompt", "prompt and prompts: one of them, not more", listed(prompt="a")),
    (
        "messages",
        "messages and messages_list and prompts: one of them, not more",
        listed(messages=[TURN], messages_list=[[TURN]]),
    ),
    (
        "prompt",
        f"more than 100 items are wrong; item 101: prompt: {PROMPT}",
        {"prompts": ["a", *[7] * 101]},
    ),
    (
        "guided_regex",
        "guided_regex: 200 times for as many sampling_params it has 1,004,000 characters, "
        "at most 1,000,000",
        {"prompts": ["a"] * 200, "sampling_params": [{}] * 200, "guided_regex": "a" * 5_000},
    ),
    (
        "best_of",
        "sampling_params.best_of: at least n, which are chosen from that many",
        sampled(n=256, best_of=255),
    ),
    (
        "n",
        f"sampling_params.n: {AT_LEAST(1)}; sampling_params.best_of: {INTEGER}",
        sampled(best_of="2", n=0),
    ),
    (
        "structured_outputs.whitespace_pattern",
        "sampling_params: guided_whitespace_pattern and structured_outputs.whitespace_pattern "
        "are the same",
        sampled(
            guided_whitespace_pattern="a",
            structured_outputs={"regex": "x", "whitespace_pattern": "b"},
        ),
    ),
    ("guided_json", ONE_KIND, llm_engine(guided_json={}, guided_regex="a")),
    ("input", "input: either a prompt or prompts", llm_engine(prompt=None)),
    ("input", "input: either a prompt or prompts", llm_engine(prompts=["b"])),
    ("fine_tune", SOURCES, tuned()),
    ("fine_tune", SOURCES, tuned(id=FINE_TUNE, training_file="a")),
    ("fine_tune", SOURCES, tuned(rows=[{}], training_path="rows.csv")),
    (
        "fine_tune",
        "fine_tune: a fine-tune that is there goes on with its id alone",
        tuned(id=FINE_TUNE, suffix="other"),
    ),
    ("fine_tune.rows", f"fine_tune.rows: {EMPTY}", tuned(rows=[])),
    (
        "fine_tune.training_file",
        f"fine_tune.training_file: {EMPTY.replace('List', 'Value')}",
        tuned(training_file=""),
    ),
    (
        "fine_tune.max_runtime_sec",
        "fine_tune.max_runtime_sec: Input should be greater than 0",
        tuned(training_file="a", max_runtime_sec=0),
    ),
    ("fine_tune.seed", f"fine_tune.seed: {INTEGER}", tuned(training_file="a", seed=1.5)),
    (
        "fine_tune.trainingfile",
        "unknown key 'fine_tune.trainingfile': did you mean 'fine_tune.training_file'?",
        tuned(trainingfile="a"),
    ),
]


def refused() -> Iterator[tuple[str | None, str, Any]]:
    """Yield the parameter, the message and the input of every case."""
    for form, key, remedy in UNKNOWN:
        yield key, f"unknown key {key!r}: {remedy}".removesuffix(": "), form(**{key: 1})
    for table, holder in ((VALUES, ""), (PARAMS, "sampling_params.")):
        for form, key, message, values in table:
            yield from ((key, f"{holder}{key}: {message}", form(**{key: one})) for one in values)
    for key, instead, payload in GONE:
        yield key, f"sampling_params: {key} is gone: {instead}", payload
    for keys, payload in SEVERAL:
        message = f"sampling_params: an answer is held to one of {', '.join(keys)}, not more"
        yield keys[0], message, payload
    for key, value in BOTH.items():
        message = f"{key} stands in sampling_params and beside them"
        yield key, message, raw(sampling_params={key: value}, **{key: value})
    yield from OTHERS


@pytest.mark.parametrize(
    ("param", "message", "payload"),
    [pytest.param(*case, id=case[1][:60].replace("\n", " ")) for case in refused()],
)
def test_a_refusal_says_what_is_wrong_and_what_would_be_right(
    param: str | None, message: str, payload: Any
) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_input(payload)
    assert (caught.value.message, caught.value.param) == (message, param)


def test_a_message_names_no_more_than_the_first_mistakes() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_input(raw(**{f"zzz{number}": 1 for number in range(99)}))
    assert caught.value.message.count("unknown key") == 5


def test_the_accepted_inputs_show_every_shape() -> None:
    assert all(any(f'"{mark}"' in ACCEPTED_INPUTS for mark in shape.marks) for shape in SHAPES)
