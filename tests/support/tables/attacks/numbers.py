"""Sampling parameters at and beyond what fits: vLLM's rows of numbers, NaN, wrong types."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from support.tables.attacks.row import (
    EITHER,
    REFUSED,
    Attack,
    Body,
    Expected,
    anthropic,
    chat,
    completion,
    engine,
    params,
    raw,
    responses,
)

ROUTES: dict[str, Callable[..., Body]] = {
    "raw": params,
    "chat": chat,
    "completions": completion,
    "responses": responses,
    "messages": anthropic,
}
INT32, INT64, UINT64 = 2**31, 2**63, 2**64


def on(routes: str, name: str, expected: Expected = REFUSED, **sampling: Any) -> list[Attack]:
    """Return rows with the same parameters on several routes; none of them did harm on a CPU."""
    return [
        Attack(f"{name} ({route})", partial(ROUTES[route], **sampling), expected, harmful=True)
        for route in routes.split()
    ]


def new(routes: str, name: str, expected: Expected = REFUSED, **sampling: Any) -> list[Attack]:
    return [
        Attack(f"{name} ({route})", partial(ROUTES[route], **sampling), expected)
        for route in routes.split()
    ]


# Beyond what the GPU's model runner has room for: it ends the engine there, not on a CPU.
ROOM = [
    *on("raw chat completions", "max_tokens 2**31", EITHER, max_tokens=INT32),
    *on("raw", "max_tokens 2**63 - 1", EITHER, max_tokens=INT64 - 1),
    *on("raw chat completions", "min_tokens 2**31", min_tokens=INT32, max_tokens=INT32),
    *on("raw chat completions", "seed 2**63", seed=INT64),
    *on("raw chat", "seed 2**64 - 1", seed=UINT64 - 1),
    *on(
        "raw chat completions",
        "1,025 allowed ids, all the same",
        EITHER,
        allowed_token_ids=[5] * 1025,
    ),
    *on("raw chat completions", "600 allowed ids", EITHER, allowed_token_ids=list(range(600))),
    *on(
        "raw chat completions",
        "logit_bias of 1,025 ids",
        logit_bias={str(id_): 1 for id_ in range(1025)},
    ),
    *on(
        "raw chat completions",
        "129 stop ids with min_tokens",
        stop_token_ids=list(range(5, 134)),
        min_tokens=1,
    ),
    *on("raw chat completions", "a bad word of 1,100 words", bad_words=["five " * 1100]),
    *on("raw chat", "1,025 bad words", bad_words=[f"word{i}" for i in range(1025)]),
    *new("raw chat", "129 bad words", bad_words=[f"word{i}" for i in range(129)]),
    *new("raw chat", "40 bad words of 200 letters", EITHER, bad_words=["five " * 40] * 40),
    *new("raw chat", "129 stop ids, no min_tokens", EITHER, stop_token_ids=list(range(5, 134))),
    *new("raw chat", "10,000 times the same stop id", EITHER, stop_token_ids=[7] * 10_000),
    Attack("seed 2**63 beside a good one", lambda: two({"seed": 1}, {"seed": INT64}), EITHER),
    Attack("min_tokens 2**31 in a list", lambda: two({}, {"min_tokens": INT32}), EITHER),
    Attack("max_new_tokens 2**31", lambda: engine(max_new_tokens=INT32), EITHER, harmful=True),
    Attack("n choices with seed 2**63 - 1", lambda: params(n=4, seed=INT64 - 1), EITHER),
    Attack("best_of with seed 2**63 - 1", lambda: params(best_of=4, seed=INT64 - 1), EITHER),
    Attack("seed -2**63", lambda: params(seed=-INT64), EITHER),
    Attack("seed -2**63 - 1", lambda: params(seed=-INT64 - 1)),
    Attack("seed 2**63 in a stream", lambda: {**params(seed=INT64), "stream": True}, harmful=True),
    Attack("seed 2**63 in a chat's stream", lambda: chat(seed=INT64, stream=True)),
    Attack(
        "responses: max_output_tokens 2**31", lambda: responses(max_output_tokens=INT32), EITHER
    ),
    Attack("messages: max_tokens 2**31", lambda: anthropic(max_tokens=INT32), EITHER),
    Attack("messages: max_tokens 2**64", lambda: anthropic(max_tokens=UINT64), EITHER),
    Attack("chat: max_completion_tokens 2**31", lambda: chat(max_completion_tokens=INT32), EITHER),
    Attack("responses: top_k 2**31", lambda: responses(top_k=INT32), EITHER),
    Attack("responses: seed 2**63", lambda: responses(seed=INT64), EITHER),
    Attack(
        "responses: logit_bias of 1,025",
        lambda: responses(logit_bias={str(i): 1 for i in range(1025)}),
        EITHER,
    ),
]


def two(first: Body, second: Body) -> Body:
    """Return a list with sampling parameters for each item."""
    return {
        "prompts": ["Hi", "Ho"],
        "sampling_params": [{"max_tokens": 4, **first}, {"max_tokens": 4, **second}],
    }


# Values that are numbers, but make no sense.
VALUES = [
    *new("raw chat completions", "n 10**9", n=10**9),
    *new("raw chat completions", "n -1", n=-1),
    *new("raw chat", "n true", EITHER, n=True),
    *new("raw chat completions", "temperature 1e308", EITHER, temperature=1e308),
    *new("raw chat", "temperature -1", temperature=-1),
    *new("raw chat completions", "top_k 2**31", EITHER, top_k=INT32),
    *new("raw chat", "top_k 2**64", top_k=UINT64),
    *new("raw", "top_k -2", top_k=-2),
    *new("raw chat", "top_p 1e-300", EITHER, top_p=1e-300),
    *new("raw chat", "min_p 2", min_p=2),
    *new("raw chat", "logprobs 10**6", EITHER, logprobs=10**6, top_logprobs=10**6),
    *new("raw chat completions", "prompt_logprobs 10**6", prompt_logprobs=10**6),
    *new("raw", "prompt_logprobs -2", prompt_logprobs=-2),
    *new("raw chat completions", "presence_penalty 1e9", presence_penalty=1e9),
    *new("raw chat", "frequency_penalty -1e9", frequency_penalty=-1e9),
    *on("raw chat completions", "repetition_penalty 1e300", repetition_penalty=1e300),
    *new("raw chat", "repetition_penalty 1e-300", EITHER, repetition_penalty=1e-300),
    *new("raw chat", "repetition_penalty 0", repetition_penalty=0),
    *on("raw", "logit_bias of 1e300", EITHER, logit_bias={"5": 1e300}),
    *new("chat completions", "logit_bias of 1e300", EITHER, logit_bias={"5": 1e300}),
    *new(
        "raw chat", "logit_bias of -1e300, logprobs", EITHER, logit_bias={"5": -1e300}, logprobs=1
    ),
    *new("raw chat", "logit_bias of id -1", logit_bias={"-1": 1}),
    *new("raw chat", "logit_bias of id 2**40", logit_bias={str(2**40): 1}),
    *new("raw chat", "logit_bias of id 1e3", logit_bias={"1e3": 1}),
    *new("raw chat", "allowed id -1", allowed_token_ids=[-1]),
    *new("raw chat", "allowed id 2**31", allowed_token_ids=[INT32]),
    *new("raw chat", "no allowed id", EITHER, allowed_token_ids=[]),
    *new("raw chat", "stop id 2**40", EITHER, stop_token_ids=[2**40]),
    *new("raw chat", "stop id -5", EITHER, stop_token_ids=[-5]),
    *new("raw chat", "min_tokens above max_tokens", min_tokens=9, max_tokens=4),
    *new("raw chat", "max_tokens 0", EITHER, max_tokens=0),
    *new("raw chat", "max_tokens -1", max_tokens=-1),
    *new("raw", "max_tokens 1e3", EITHER, max_tokens=1e3),
    *new("raw chat", "logprob_token_ids of 10**6", EITHER, logprob_token_ids=[10**6]),
    *new("raw chat", "thinking_token_budget 2**31", EITHER, thinking_token_budget=INT32),
    *new("raw chat", "thinking_token_budget -2**31", EITHER, thinking_token_budget=-INT32),
    *new(
        "raw chat",
        "repetition_detection odd",
        EITHER,
        repetition_detection={"max_pattern_size": INT32, "min_count": 0},
    ),
    *new("raw", "stream_interval 0", EITHER, stream_interval=0),
    *new("raw", "routed_experts_prompt_start 2**31", EITHER, routed_experts_prompt_start=INT32),
    # Beam search divides by a power of the length.
    *on(
        "raw chat completions",
        "beam length_penalty -400",
        use_beam_search=True,
        n=2,
        length_penalty=-400,
    ),
    *on("raw chat", "beam length_penalty 400", use_beam_search=True, n=2, length_penalty=400),
    *new("raw chat", "beam length_penalty 1e308", use_beam_search=True, n=2, length_penalty=1e308),
    *new("raw chat", "beam of 256", EITHER, use_beam_search=True, best_of=256, n=1),
    *new("raw", "beam with min_tokens 2**31", use_beam_search=True, n=2, min_tokens=INT32),
    # A search through all of the context takes a minute.
    *(
        replace(attack, limit_s=180.0)
        for attack in new(
            "raw chat",
            "beam with max_tokens 2**31",
            EITHER,
            use_beam_search=True,
            n=2,
            max_tokens=INT32,
        )
    ),
]


def literal(key: str, value: str) -> bytes:
    return b'{"prompt": "Hi", "sampling_params": {"max_tokens": 4, "%s": %s}}' % (
        key.encode(),
        value.encode(),
    )


# As JSON that Python's own decoder reads, but few others.
LITERALS = [
    Attack(f"{key} {value[:8]}", partial(literal, key, value))
    for key, value in (
        ("temperature", "NaN"),
        ("temperature", "Infinity"),
        ("temperature", "1e400"),
        ("top_p", "NaN"),
        ("min_p", "-Infinity"),
        ("presence_penalty", "NaN"),
        ("repetition_penalty", "Infinity"),
        ("length_penalty", "NaN"),
        ("seed", "9" * 4301),
        ("min_tokens", "9" * 400),
        ("max_tokens", "1e400"),
        ("logit_bias", '{"5": NaN}'),
        ("logit_bias", '{"5": Infinity}'),
        ("logit_bias", '{"5": 1e400}'),
    )
]

CHUNKS = [
    Attack(
        "max_batch_size 2**64", lambda: {**raw(), "stream": True, "max_batch_size": UINT64}, EITHER
    ),
    Attack(
        "max_batch_delay_ms 1e308",
        lambda: {**raw(), "stream": True, "max_batch_delay_ms": 1e308},
        EITHER,
    ),
    Attack(
        "batch_size_growth_factor 1e308",
        lambda: {**raw(), "stream": True, "batch_size_growth_factor": 1e308},
        EITHER,
    ),
    Attack("token ids of 2**31", lambda: raw(prompt=[INT32])),
    Attack("token ids of 2**64", lambda: raw(prompt=[UINT64])),
    Attack("a token id beyond the vocabulary", lambda: raw(prompt=[623_000])),
    Attack("completions: token ids of 2**63", lambda: completion(prompt=[INT64])),
    Attack("completions: token id true", lambda: completion(prompt=[True]), EITHER),
    Attack(
        "completions: a list with a list of ids of 2**31", lambda: completion(prompt=[[1], [INT32]])
    ),
]

ROWS = [*ROOM, *VALUES, *LITERALS, *CHUNKS]
