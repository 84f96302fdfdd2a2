"""The first request of an engine, and whether the model's chat template renders it."""

import asyncio
import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from worker.engine.seam.locations import find, optional
from worker.engine.seam.translation import accepted, translated
from worker.engine.start.configuring import Check, Configured
from worker.errors import RefusedByEngine, RequestError
from worker.job.base import with_system_prompt

_GENERATES = "generate"
_EMBEDS = "embed"


def greeting(chats: Any) -> dict[str, Any]:
    """Return the richest input that a model takes: messages, a text or token ids.

    Args:
        chats: what renders conversations in vLLM's server.
    """
    tokenizer = chats.renderer.tokenizer
    if tokenizer is None:
        return {"prompt": [0]}
    if chats.chat_template or getattr(tokenizer, "chat_template", None):
        return {"messages": [{"role": "user", "content": "Hi"}]}
    return {"prompt": "Hi"}


@contextlib.contextmanager
def not_to_be_refused() -> Iterator[None]:
    """Raise the refusal of a first request as what a start is refused for.

    Raises:
        ValueError: with the refusal's words.
    """
    try:
        yield
    except (RequestError, RefusedByEngine) as refused:
        raise ValueError(f"a first request is refused: {refused.message}") from refused


def renders(system_prompt: str | None) -> Check:
    """Return a check that loads the tokenizer, and renders a first message as the warm-up does.

    Args:
        system_prompt: opens conversations that have no system message.
    """

    def check(configured: Configured) -> None:
        model = configured.config.model_config
        if model.skip_tokenizer_init:
            return
        find("cached_tokenizer_from_config")(model)
        # A model that neither generates nor embeds is not asked anything by the warm-up.
        asked = model.runner_type == _GENERATES or model.convert_type == _EMBEDS
        for init_state in optional("init_render_app_state") if asked else ():
            asyncio.run(_render(init_state, configured, system_prompt))

    return check


async def _render(init_state: Any, configured: Configured, system_prompt: str | None) -> None:
    """Render with vLLM's server for machines that only render.

    Raises:
        Exception: one of ``START_ERRORS``.
    """
    state = SimpleNamespace()
    await init_state(configured.config, state, configured.arguments.vllm)
    chats = state.online_renderer
    try:
        if messages := greeting(chats).get("messages"):
            client: Any = SimpleNamespace(errored=False)
            with not_to_be_refused(), translated(client):
                request = find("ChatCompletionRequest")(
                    messages=with_system_prompt(messages, system_prompt), max_tokens=1
                )
                accepted(await chats.render_chat(request))
    finally:
        chats.renderer.shutdown()
