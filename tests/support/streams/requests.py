"""Hypothesis strategies for streams: requests that the demo model answers, and policies of chunks.

The same request has the same answer each time: it is greedy, or has a seed.
"""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from worker.chunking import ChunkPolicy

Json = st.SearchStrategy[Any]
Body = dict[str, Any]

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"

# The size of the demo model's vocabulary.
TOKENS = 620
MAX_TOKENS = 80
# The largest value of ``min_tokens``; requests with a lower maximum don't have it.
MIN_TOKENS = 12
# Optional keys that a body has in addition to those that select its answer.
MAX_KEYS = 5

# Questions of the demo model's dialogues, and two that it has not learned.
JOB_QUESTION = "Is job 42 done?"
CHINESE_QUESTION = "Please answer in Chinese."
QUESTIONS = [
    JOB_QUESTION,
    CHINESE_QUESTION,
    "Count to ten.",
    "Describe the worker as JSON.",
    "Tell me the story of a job.",
    "How do chunks grow?",
    "quiet river paints",
    "über 🤖",
]
# Texts in its answers, some across several tokens, and one that it never writes.
STOPS = ["three", ", four, fi", "e", " job", "\n\n", "。", "🌊", '"stream', "job_id", ".", "zzz"]
PROMPTS = [*QUESTIONS, "Once upon a time there was a small worker", "one, two, three"]
SCHEMAS: list[Body] = [
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"type": "object", "properties": {"über": {"enum": ["你好", "b"]}}, "required": ["über"]},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 9},
    {"enum": ["small", "large"]},
]
PARAMETERS: Body = {
    "type": "object",
    "properties": {"job_id": {"type": "string", "maxLength": 9}},
    "required": ["job_id"],
}
NAMES = ["job_status", "cancel"]
_CALL = (
    r'<tool_call>\n\{"name": "(job_status|cancel)", "arguments": \{"job_id": "[a-z42]{1,9}"\}\}\n'
)
_CALL += "</tool_call>"
# Texts that the model does not write by itself: with reasoning; with calls after another text,
# several, and without arguments.
REASONING_TEXTS = [
    r"<think>\n[a-z ]{1,30}</think>\n\n[a-z ]{1,30}",
    "(<think>)?[a-z]{1,9}</think>你?好",
]
CALLING_TEXTS = [
    f"<think>[a-z]{{1,9}}</think>( Well: )?{_CALL}",
    f"One moment, [a-z]{{1,9}}{_CALL}",
    f"{_CALL}\n{_CALL}",
    f"<tool {_CALL}( and {_CALL})?",
    r'<tool_call>\{"name": "cancel"\}</tool_call> 你好',
    r'<tool_call>\{"arguments": \{\}, "name": "cancel"\}</tool_call>',
]


@dataclass(frozen=True)
class StreamRequest:
    """A request, and the keys next to it for the chunks of its stream."""

    path: str
    body: Body
    chunk_keys: Body = field(default_factory=dict)

    def job(self, **changes: Any) -> Body:
        """Return the input of a job; the changes are keys of the body."""
        return {
            "openai_route": self.path,
            "openai_input": {**self.body, **changes},
            **self.chunk_keys,
        }


def optional(limit: int, **fields: Json) -> Json:
    """Return a strategy for objects with a few of some keys."""
    names = st.lists(st.sampled_from(sorted(fields)), max_size=limit, unique=True)
    return names.flatmap(
        lambda chosen: st.fixed_dictionaries({name: fields[name] for name in chosen})
    )


def merge(*parts: Json) -> Json:
    """Return a strategy that merges objects; later ones override earlier ones."""
    return st.tuples(*parts).map(lambda found: {k: v for one in found for k, v in one.items()})


flags: Json = st.booleans()
lengths: Json = st.one_of(st.integers(1, MIN_TOKENS), st.integers(1, MAX_TOKENS))
token_ids: Json = st.lists(st.integers(0, TOKENS - 1), min_size=1, max_size=5)
stops: Json = st.one_of(
    st.sampled_from(STOPS), st.lists(st.sampled_from(STOPS), min_size=1, max_size=3)
)
greedy: Json = st.just({"temperature": 0})
sampled: Json = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.5, 1, 1.6]), "seed": st.integers(0, 99)}
)
# The keys of requests to vLLM that have several choices.
several: Json = merge(sampled, st.fixed_dictionaries({"n": st.integers(2, 3)}))
structured: Json = st.one_of(
    st.sampled_from(SCHEMAS).map(lambda schema: {"json": schema}),
    st.sampled_from([["yes", "no"], ["one, two, three", "你好。"]]).map(
        lambda one: {"choice": one}
    ),
    st.sampled_from([r"[a-z ]{3,30}", r"(你|好){2,9}", r"\d+\.\d\d"]).map(
        lambda one: {"regex": one}
    ),
)
SAMPLING: dict[str, Json] = {
    "stop": stops,
    "include_stop_str_in_output": flags,
    "stop_token_ids": token_ids,
    "ignore_eos": flags,
    "skip_special_tokens": st.just(False),
    "frequency_penalty": st.sampled_from([-1, 0.5, 2]),
    "repetition_penalty": st.sampled_from([0.8, 1.3]),
    "logit_bias": st.dictionaries(
        st.integers(0, TOKENS - 1).map(str), st.sampled_from([-100, 5, 20]), min_size=1, max_size=3
    ),
}
# The keys that both routes of OpenAI's older APIs have.
calling: Json = st.sampled_from(CALLING_TEXTS).map(lambda text: {"regex": text})
constrained: Json = st.fixed_dictionaries({"structured_outputs": structured})
MORE_SAMPLING: dict[str, Json] = {
    **SAMPLING,
    "min_tokens": st.integers(0, MIN_TOKENS),
    "return_token_ids": flags,
    "return_tokens_as_token_ids": st.just(True),
    "stream_interval": st.integers(1, 12),
}
chunk_keys: Json = st.fixed_dictionaries(
    {"max_batch_delay_ms": st.sampled_from([0, 0, 0, 1, 10, 100])},
    optional={
        "max_batch_size": st.integers(1, 60),
        "min_batch_size": st.one_of(st.integers(1, 9), st.just(1.5)),
        "batch_size_growth_factor": st.sampled_from([1, 1.3, 2, 3, 10]),
    },
)
stream_options: Json = st.fixed_dictionaries(
    {"include_usage": flags}, optional={"continuous_usage_stats": flags}
)


def conversations(questions: Json) -> Json:
    return questions.map(lambda question: [{"role": "user", "content": question}])


def with_one_constraint(*keys: Json) -> Json:
    """Return a strategy for objects with one of these keys; vLLM refuses several."""
    return st.one_of(st.just({}), st.just({}), *keys)


def _min_tokens_fit(body: Body) -> bool:
    return bool(body.get("min_tokens", 0) <= body["max_tokens"])


def tools(make_tool: Any, make_choice: Any, **written: Json) -> Json:
    """Return a strategy for the keys of requests with tools.

    Args:
        make_tool: Returns a tool in the format of a route, from its name.
        make_choice: Returns ``tool_choice``, from "auto", "required", "none" or a name.
        written: Keys that make the model write certain texts.
    """
    lists = st.sampled_from([NAMES[:1], NAMES])
    choices = st.sampled_from(["auto", "auto", "required", "none", NAMES[0]])
    listed = {"tools": lists.map(lambda names: [make_tool(name) for name in names])}
    forms = [st.fixed_dictionaries({**listed, "tool_choice": choices.map(make_choice)})]
    if written:
        automatic = st.just(make_choice("auto"))
        forms.append(st.fixed_dictionaries({**listed, "tool_choice": automatic, **written}))
    return st.one_of(*forms)


def _function(name: str) -> Body:
    return {"name": name, "description": "A tool.", "parameters": PARAMETERS}


def _chat_bodies() -> Json:
    with_tools = merge(
        st.fixed_dictionaries({"messages": conversations(st.just(JOB_QUESTION))}),
        tools(
            lambda name: {"type": "function", "function": _function(name)},
            lambda choice: (
                {"type": "function", "function": {"name": choice}} if choice in NAMES else choice
            ),
            structured_outputs=calling,
        ),
        optional(1, parallel_tool_calls=st.just(False)),
    )
    logprobs = st.fixed_dictionaries(
        {"logprobs": st.just(True)}, optional={"top_logprobs": st.sampled_from([0, 1, 5, 20])}
    )
    formats = st.sampled_from(SCHEMAS).map(
        lambda schema: {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": schema},
            }
        }
    )
    continued = {
        "messages": [
            {"role": "user", "content": "Count to ten."},
            {"role": "assistant", "content": "one, two, three"},
        ],
        "add_generation_prompt": False,
        "continue_final_message": True,
    }
    echoed = st.booleans().map(lambda echo: {**continued, "echo": echo})
    plain = st.fixed_dictionaries({"messages": conversations(st.sampled_from(QUESTIONS))})
    plain = merge(plain, with_one_constraint(constrained, formats))
    return merge(
        st.fixed_dictionaries({"max_tokens": lengths}),
        st.one_of(plain, plain, with_tools, with_tools, echoed),
        st.one_of(greedy, sampled, several),
        st.one_of(st.just({}), logprobs),
        optional(
            MAX_KEYS,
            **MORE_SAMPLING,
            stream_options=stream_options,
            include_reasoning=st.just(False),
        ),
    ).filter(_min_tokens_fit)


def _completion_bodies() -> Json:
    texts = st.sampled_from(PROMPTS)
    lists = st.lists(texts, min_size=1, max_size=3)
    prompts = st.one_of(texts, texts, lists, token_ids, st.lists(token_ids, min_size=1, max_size=3))
    logprobs = st.sampled_from([0, 1, 5, 20]).map(lambda number: {"logprobs": number})
    return merge(
        st.fixed_dictionaries({"prompt": prompts, "max_tokens": lengths}),
        st.one_of(greedy, sampled, several),
        st.one_of(st.just({}), logprobs),
        with_one_constraint(constrained),
        optional(MAX_KEYS, **MORE_SAMPLING, echo=st.just(True), stream_options=stream_options),
    ).filter(_min_tokens_fit)


def _response_bodies() -> Json:
    with_tools = merge(
        st.just({"input": JOB_QUESTION}),
        tools(
            lambda name: {"type": "function", **_function(name)},
            lambda choice: {"type": "function", "name": choice} if choice in NAMES else choice,
            structured_outputs=calling,
        ),
    )
    plain = st.fixed_dictionaries({"input": st.sampled_from(QUESTIONS)})
    logprobs = st.fixed_dictionaries(
        {
            "include": st.just(["message.output_text.logprobs"]),
            "top_logprobs": st.sampled_from([0, 1, 5, 20]),
        }
    )
    formats = st.sampled_from(SCHEMAS[:2]).map(
        lambda schema: {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}
    )
    plain = merge(plain, with_one_constraint(constrained, formats))
    return merge(
        st.fixed_dictionaries({"max_output_tokens": lengths}),
        st.one_of(plain, with_tools),
        st.one_of(greedy, sampled),
        st.one_of(st.just({}), logprobs),
        optional(MAX_KEYS, **SAMPLING, include_reasoning=st.just(False)),
    )


def _message_bodies() -> Json:
    with_tools = merge(
        st.fixed_dictionaries({"messages": conversations(st.just(JOB_QUESTION))}),
        tools(
            lambda name: {"name": name, "description": "A tool.", "input_schema": PARAMETERS},
            lambda choice: (
                {"type": "tool", "name": choice}
                if choice in NAMES
                else {"type": "any" if choice == "required" else choice}
            ),
        ),
    )
    plain = st.fixed_dictionaries({"messages": conversations(st.sampled_from(QUESTIONS))})
    # This API has no seed.
    return merge(
        st.fixed_dictionaries({"max_tokens": lengths, "temperature": st.just(0)}),
        st.one_of(plain, with_tools),
        optional(
            2,
            stop_sequences=st.lists(st.sampled_from(STOPS), min_size=1, max_size=3),
            system=st.just("You are a pirate."),
        ),
    )


BODIES: dict[str, Json] = {
    CHAT: _chat_bodies(),
    COMPLETIONS: _completion_bodies(),
    RESPONSES: _response_bodies(),
    MESSAGES: _message_bodies(),
}
# Chats and completions have more parameters than the others.
WEIGHTS = {CHAT: 3, COMPLETIONS: 2, RESPONSES: 2, MESSAGES: 1}
stream_requests: st.SearchStrategy[StreamRequest] = st.one_of(
    *(
        st.builds(StreamRequest, st.just(path), body, chunk_keys)
        for path, body in BODIES.items()
        for _ in range(WEIGHTS[path])
    )
)
chunk_policies = st.builds(
    ChunkPolicy,
    largest=st.integers(1, 60),
    smallest=st.sampled_from([0, 0.5, 1, 1.5, 4]),
    growth=st.sampled_from([0, 1, 1.1, 1.5, 3]),
    max_delay=st.sampled_from([0.0, 0.02, 0.1]),
)
