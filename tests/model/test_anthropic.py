"""Anthropic's API on the real engine: what agents send to every model."""

from collections.abc import Awaitable, Callable
from typing import Any

Ask = Callable[..., Awaitable[list[Any]]]

BODY = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 3, "temperature": 0}


async def test_a_budget_for_reasoning_is_no_mistake(ask: Ask) -> None:
    budget = {"type": "enabled", "budget_tokens": 1024}
    (answer,) = await ask(openai_route="/v1/messages", openai_input={**BODY, "thinking": budget})
    assert answer["content"][0]["text"]
