"""Every key that a request to vLLM may have is bounded by a row, or needs no bound.

A key of a new vLLM fails this test: give it to a row of ``worker.limits``, or write below why
nothing bounds it but the size of a body.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from worker.dialects.table import ROUTES
from worker.engine.options import Options
from worker.engine.run.server import Server
from worker.limits.shapes import SHAPES
from worker.limits.table import CHECKS
from worker.media import Limits, Media
from worker.media.fetcher import Fetcher

SWITCH = "a switch, or one of few words: vLLM checks it"
NAME = "a name: looked up or passed on as it is, as long as 64,000 characters"
NUMBER = "a number that vLLM checks, and that no array on a GPU holds"

UNBOUNDED = {
    **dict.fromkeys(
        """
        add_generation_prompt add_special_tokens background continue_final_message echo embed_dtype
        enable_response_messages endianness ignore_eos include_reasoning include_stop_str_in_output
        mm_payload parallel_tool_calls reasoning_effort return_mm_kwargs return_prompt_text
        return_token_ids return_token_offsets return_token_strs return_tokens_as_token_ids
        service_tier skip_special_tokens spaces_between_special_tokens store stream truncation
        truncation_side use_activation use_beam_search watermarking
        """.split(),
        SWITCH,
    ),
    **dict.fromkeys(
        """
        cache_salt model previous_response_id prompt_cache_key session_id task user
        """.split(),
        NAME,
    ),
    **dict.fromkeys(
        "dimensions max_tokens_per_doc max_tokens_per_query min_p temperature top_n top_p".split(),
        NUMBER,
    ),
    "chat_template": "refused, unless the operator trusts callers with templates",
    "data": "only a plugin of the operator's reads it",
    "include": "a list of few words, as long as any list",
    "metadata": "returned as it is",
    "padding": "prompts become as long as the context, as they may be anyway",
    "reasoning": "an object of switches",
    "stream_options": "an object of switches",
    "suffix": "vLLM refuses it",
    "thinking": "an object of a switch and a number",
}


def keys_by_route() -> dict[str, frozenset[str]]:
    """Return the keys of each route of vLLM's server with a body, of models of both kinds."""
    pooling = SimpleNamespace(
        get_pooling_task=lambda _: "embed",
        hf_config=SimpleNamespace(num_labels=1),
        score_type="late-interaction",
        max_model_len=1,
    )
    found: dict[str, frozenset[str]] = {}
    arguments = Options().parse({"MODEL": "org/name"}).arguments.vllm
    media = Media(Limits(), Fetcher(), ["image"])
    for config, tasks in ((None, ("generate",)), (pooling, ("embed", "score", "token_embed"))):
        client: Any = SimpleNamespace(model_config=config, errored=False)
        server = Server(client, arguments, tasks, media)
        found |= {path: keys for path in SHAPES if (keys := server.keys(path))}
    return found


@pytest.fixture(scope="module")
def keys() -> dict[str, frozenset[str]]:
    return keys_by_route()


def test_every_key_is_bounded_or_needs_no_bound(keys: dict[str, frozenset[str]]) -> None:
    bounded = frozenset().union(*(check.keys for check in CHECKS))
    unknown = {path: sorted(of - bounded - UNBOUNDED.keys()) for path, of in keys.items()}
    assert {path: names for path, names in unknown.items() if names} == {}


def test_no_key_that_is_bounded_is_said_to_need_no_bound() -> None:
    assert not UNBOUNDED.keys() & frozenset().union(*(check.keys for check in CHECKS))


def test_every_route_with_a_body_is_known_with_its_texts(keys: dict[str, frozenset[str]]) -> None:
    assert keys.keys() == SHAPES.keys()
    forwarded = {
        route.path
        for route in ROUTES
        if route.method == "POST" and not (route.own or route.generate)
    }
    assert forwarded == SHAPES.keys()
    for path, shape in SHAPES.items():
        # A release may lack one of them.
        assert {*shape.texts} & keys[path], path
