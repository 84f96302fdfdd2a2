"""Hypothesis strategies for inputs of jobs, with valid and invalid values for each key."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from support.tables.sampling import ROWS

from worker.dialects.llm_engine.completions import LLMEngineJob
from worker.job import OpenAIJob, PromptListJob, RawJob
from worker.limits.parameters import GUIDED_KEYS, GUIDED_OBJECTS

Json = SearchStrategy[Any]

POWERS = (2**15, 2**31, 2**32, 2**53, 2**63, 2**64, 10**30)
BOUNDS = [
    -1,
    0,
    1,
    *(sign * power + step for power in POWERS for sign in (1, -1) for step in (-1, 0)),
]
ODD_FLOATS = [0.5, -0.0, 1e-300, 1e9, 1e300, -1e300, float("inf"), float("nan")]
ODD_TEXTS = [
    "",
    "\x00",
    "\ud800",
    "é" * 99,
    "a" * 3_000,
    "\n" * 300,
    "/a" * 300,
    "{{ 1/0 }}",
    "<|im_start|>",
]
REGEXES = [
    "[ab]{2,5}",
    "(a|b)*",
    "(",
    "a{0,100}",
    "((a{0,50}){0,50}){0,50}",
    r"\d{3}-\w+",
    "(?=a)b",
]
GRAMMARS = ['root ::= "yes" | "no"', "root ::= root", "", 'root ::= ("a"){0,50}', "start: start"]
SCHEMAS: list[Any] = [
    {"type": "boolean"},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"$ref": "#"},
    {"type": "none"},
    {"enum": [1, "a", None]},
    {"allOf": [{"type": "string"}, {"enum": ["yes"]}]},
    {"type": "string", "pattern": "((a{0,50}){0,50}){0,50}"},
]

numbers: Json = st.one_of(
    st.sampled_from(BOUNDS), st.sampled_from(ODD_FLOATS), st.integers(), st.floats()
)
texts: Json = st.one_of(st.sampled_from(ODD_TEXTS), st.text(max_size=20))
keys: Json = st.text(max_size=8)
junk: Json = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=8,
)


def mostly(good: Json) -> Json:
    """Return a strategy that is often ``good`` and otherwise any value."""
    return st.one_of(good, good, good, numbers, texts, junk)


structured: Json = st.one_of(
    st.fixed_dictionaries({"regex": mostly(st.sampled_from(REGEXES))}),
    st.fixed_dictionaries({"grammar": mostly(st.sampled_from(GRAMMARS))}),
    st.fixed_dictionaries({"json": mostly(st.sampled_from(SCHEMAS))}),
    st.fixed_dictionaries({"choice": mostly(st.lists(texts, max_size=3))}),
    st.dictionaries(keys, junk, max_size=2),
)
content: Json = mostly(
    st.one_of(
        texts, st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=3)
    )
)
message: Json = st.fixed_dictionaries(
    {"role": mostly(st.sampled_from(["user", "system", "assistant", "tool"])), "content": content},
    optional={"name": junk, "tool_calls": junk, "uuid": junk},
)
messages: Json = mostly(st.lists(mostly(message), max_size=3))
tools: Json = mostly(
    st.lists(
        st.fixed_dictionaries(
            {
                "type": st.just("function"),
                "function": st.fixed_dictionaries(
                    {"name": texts, "parameters": st.sampled_from(SCHEMAS)}
                ),
            }
        ),
        max_size=2,
    )
)
prompt: Json = mostly(st.one_of(texts, st.lists(st.integers(0, 600), max_size=9)))
flag: Json = mostly(st.booleans())

GUIDED_VALUES: dict[str, Json] = {
    "guided_regex": mostly(st.sampled_from(REGEXES)),
    "guided_grammar": mostly(st.sampled_from(GRAMMARS)),
    "guided_json": mostly(st.sampled_from(SCHEMAS)),
    "guided_choice": mostly(st.lists(texts, max_size=3)),
    **dict.fromkeys(GUIDED_OBJECTS, structured),
}
SAMPLING: dict[str, Json] = {
    **{
        name: mostly(st.sampled_from([row.value, row.default, *row.refused_values]))
        for name, row in ROWS.items()
    },
    **dict.fromkeys(GUIDED_KEYS, junk),
    **GUIDED_VALUES,
    "allowed_token_ids": mostly(st.lists(st.one_of(st.integers(0, 700), numbers), max_size=5)),
    "logit_bias": mostly(st.dictionaries(st.integers(-1, 700).map(str), numbers, max_size=4)),
    "bad_words": mostly(st.lists(texts, max_size=3)),
    "stop": mostly(st.lists(texts, max_size=3)),
    "max_tokens": mostly(st.integers(1, 4)),
}
SHORT = st.just({"max_tokens": 3})


def with_few_keys(fields: dict[str, Json], limit: int) -> Json:
    """Return a strategy for objects with a few of many keys: among fifty, one is always refused."""
    chosen = st.lists(st.sampled_from(sorted(fields)), max_size=limit, unique=True)
    return chosen.flatmap(
        lambda names: st.fixed_dictionaries({name: fields[name] for name in names})
    )


def merge(*parts: Json) -> Json:
    """Return a strategy that merges several objects; later ones override earlier ones."""
    return st.tuples(*parts).map(lambda objects: {k: v for one in objects for k, v in one.items()})


sampling: Json = st.one_of(
    *([merge(SHORT, with_few_keys(SAMPLING, 3))] * 4),
    merge(SHORT, st.dictionaries(keys, junk, max_size=2)),
)
KNOWN: dict[str, Json] = {
    "prompt": prompt,
    "messages": messages,
    "tools": tools,
    "chat_template_kwargs": mostly(st.dictionaries(keys, junk, max_size=3)),
    "stream": flag,
    "add_generation_prompt": flag,
    "continue_final_message": flag,
    "apply_chat_template": flag,
    "return_token_ids": flag,
    "sampling_params": mostly(sampling),
    "prompts": mostly(st.lists(prompt, max_size=4)),
    "messages_list": mostly(st.lists(messages, max_size=3)),
    "max_new_tokens": mostly(st.integers(1, 4)),
    "stop_sequences": mostly(st.lists(texts, max_size=3)),
    **GUIDED_VALUES,
}


def job_inputs(fields: Any) -> Json:
    """Return a strategy for objects with a few of some keys and sometimes an unknown key."""
    known = {name: KNOWN.get(name, SAMPLING.get(name, numbers)) for name in fields}
    extra = st.dictionaries(keys, junk, max_size=1)
    return st.one_of(*([with_few_keys(known, 3)] * 4), merge(with_few_keys(known, 3), extra))


OPENAI: dict[str, Json] = {
    **SAMPLING,
    "messages": messages,
    "prompt": prompt,
    "input": mostly(st.one_of(texts, messages)),
    "tools": tools,
    "tool_choice": mostly(st.sampled_from(["auto", "none", "required"])),
    "response_format": mostly(
        st.sampled_from(SCHEMAS).map(
            lambda schema: {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        )
    ),
    "stream": flag,
    "echo": flag,
    "chat_template_kwargs": mostly(st.dictionaries(keys, junk, max_size=3)),
    "truncate_prompt_tokens": numbers,
    "vllm_xargs": mostly(st.dictionaries(keys, junk, max_size=2)),
}
HELLO = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 3},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 3},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 3},
    "/v1/messages": {"messages": HELLO, "max_tokens": 3},
    "/v1/messages/count_tokens": {"messages": HELLO},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [1, 2]},
}
with_sampling = st.fixed_dictionaries({"sampling_params": mostly(sampling)})
raw: Json = merge(
    st.fixed_dictionaries({"prompt": prompt}), with_sampling, job_inputs(RawJob.model_fields)
)
conversation: Json = merge(
    st.fixed_dictionaries({"messages": messages}), with_sampling, job_inputs(RawJob.model_fields)
)
lists: Json = merge(
    st.fixed_dictionaries({"prompts": KNOWN["prompts"]}),
    with_sampling,
    job_inputs([*RawJob.model_fields, *PromptListJob.model_fields]),
)
engine: Json = merge(
    st.just({"format": "llm_engine", "prompt": "Hi", "max_new_tokens": 3}),
    job_inputs(LLMEngineJob.model_fields),
)
openai: Json = st.one_of(
    *(
        merge(
            st.just({"route": route, "method": "POST"}),
            st.fixed_dictionaries({"body": merge(st.just(body), with_few_keys(OPENAI, 3))}),
            st.one_of(st.just({}), st.just({}), job_inputs(OpenAIJob.model_fields)),
        )
        for route, body in BODIES.items()
    )
)
any_job: Json = st.one_of(raw, raw, raw, conversation, lists, engine, openai, junk)
