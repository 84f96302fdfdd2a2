"""An engine that dies while clients read: each one raises its own exception, and none waits."""

import asyncio
import os
import signal
from typing import Any

import anthropic
import openai
import pytest
from endpoints import EndpointFactory

MESSAGES: Any = [{"role": "user", "content": "Hi"}]
LONG: dict[str, Any] = {"model": "demo", "stream": True, "extra_body": {"ignore_eos": True}}
# Anthropic's API can't ignore the end of a text, but ask for what is long.
LIST = {"type": "array", "items": {"type": "boolean"}, "minItems": 1000}
LONG_MESSAGE: dict[str, Any] = {
    **{"model": "demo", "stream": True, "max_tokens": 1900},
    "output_config": {"format": {"type": "json_schema", "schema": LIST}},
}


async def test_an_error_inside_a_stream_is_the_clients_own_exception(
    started_endpoint: EndpointFactory,
) -> None:
    async with started_endpoint() as endpoint:
        url = endpoint.emulator.openai_url
        async with (
            openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as of_openai,
            anthropic.AsyncAnthropic(
                base_url=url.removesuffix("/v1"), api_key="any", max_retries=0
            ) as of_anthropic,
        ):
            streams = await asyncio.gather(
                of_openai.chat.completions.create(messages=MESSAGES, max_tokens=1900, **LONG),
                of_openai.responses.create(input=MESSAGES, max_output_tokens=1900, **LONG),
                of_anthropic.messages.create(messages=MESSAGES, **LONG_MESSAGE),
            )
            for stream in streams:
                await anext(aiter(stream))
            os.kill(endpoint.core_pid(), signal.SIGKILL)
            for stream, error in zip(
                streams, (openai.APIError, openai.APIError, anthropic.APIError), strict=True
            ):
                with pytest.raises(error, match="engine"):
                    async for _ in stream:
                        pass
