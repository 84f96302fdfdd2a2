"""Renders the prompt of a raw job for the engine."""

from collections.abc import Mapping
from typing import Any

from vllm.renderers.inputs.preprocess import parse_model_prompt

from worker.engine.run.requests.texts import bounded
from worker.engine.run.server import Server
from worker.engine.seam.locations import find
from worker.engine.seam.protocols import Client, EngineInput
from worker.engine.seam.translation import accepted, translated
from worker.errors import InvalidInput
from worker.job import RawJob
from worker.job.base import with_system_prompt
from worker.limits.shapes import RAW
from worker.media import Media

NO_TOKENIZER = (
    "This worker runs without a tokenizer (SKIP_TOKENIZER_INIT), so it takes no text: send the "
    "prompt as a list of token ids."
)


def greeting(chats: Any) -> dict[str, Any]:
    """Return the richest input that a model takes: messages, a text or token ids.

    ``chats`` is what renders conversations in vLLM's server.
    """
    tokenizer = chats.renderer.tokenizer
    if tokenizer is None:
        return {"prompt": [0]}
    if chats.chat_template or getattr(tokenizer, "chat_template", None):
        return {"messages": [{"role": "user", "content": "Hi"}]}
    return {"prompt": "Hi"}


class Prompts:
    """Renders with the objects of vLLM's own server, so that both paths give the same prompt."""

    def __init__(self, client: Client, server: Server, system_prompt: str | None) -> None:
        """``server`` is vLLM's; the prompt opens chats without a system message."""
        self._client = client
        # What renders conversations in vLLM's server.
        self.chats = server.state.online_renderer
        self._system_prompt = system_prompt

    async def render_job(
        self, job: RawJob, chat_template: str | None = None, media: Media | None = None
    ) -> EngineInput:
        """Render the prompt or the conversation of a job.

        Args:
            job: its sampling parameters don't matter here.
            chat_template: replaces the model's own, where the operator trusts callers.
            media: replaces those of the conversation; None where the operator trusts callers.

        Raises:
            WorkerError: it is refused.
        """
        conversation = self.conversation(job)
        beside = {"tools": job.tools, "chat_template_kwargs": job.chat_template_kwargs}
        bounded(self._client, {"messages": conversation, "prompt": job.prompt, **beside}, RAW)
        if conversation is None:
            return await self.render_prompt(job.prompt)
        if self._client.renderer.tokenizer is None:
            raise InvalidInput(NO_TOKENIZER, param="messages")
        return await self._render_chat(job, conversation, chat_template, media)

    def conversation(self, job: RawJob) -> list[dict[str, Any]] | None:
        """Return the messages for the chat template; None if the job is no conversation."""
        messages = job.conversation
        return None if messages is None else with_system_prompt(messages, self._system_prompt)

    async def render_prompt(self, prompt: Any) -> EngineInput:
        """Render a text, token ids or one of vLLM's prompt dicts.

        Raises:
            WorkerError: it is too long, holds unknown ids, or is a text without a tokenizer.
        """
        renderer = self._client.renderer
        if renderer.tokenizer is None:
            self._check_ids(prompt)
        with translated(self._client):
            parsed = parse_model_prompt(self._client.model_config, prompt)
            (rendered,) = await renderer.render_cmpl_async([parsed])
        return rendered

    def _check_ids(self, prompt: Any) -> None:
        """Check what vLLM checks only with a tokenizer: an unknown id would kill the engine."""
        ids = prompt.get("prompt_token_ids") if isinstance(prompt, dict) else prompt
        if not isinstance(ids, list):
            raise InvalidInput(NO_TOKENIZER, param="prompt")
        size = self._client.model_config.get_vocab_size()
        if unknown := next((id_ for id_ in ids if not 0 <= id_ < size), None):
            raise InvalidInput(f"Token id {unknown} is out of vocabulary", param="prompt")

    async def _render_chat(
        self,
        job: RawJob,
        conversation: list[dict[str, Any]],
        chat_template: str | None,
        media: Media | None,
    ) -> EngineInput:
        begins = job.add_generation_prompt
        body: Mapping[str, Any] = {
            "messages": conversation,
            "chat_template_kwargs": job.chat_template_kwargs,
        }
        shows = True
        if media is not None:
            body, shows = await media.inlined(body, RAW.texts)
        with translated(self._client, shows_media=shows):
            request = find("ChatCompletionRequest")(
                messages=body["messages"],
                tools=job.tools,
                # The template shows the tools; calls are not parsed but stay in the answer's text.
                tool_choice="none" if job.tools else None,
                chat_template=chat_template,
                chat_template_kwargs=job.chat_template_kwargs,
                add_generation_prompt=not job.continue_final_message if begins is None else begins,
                continue_final_message=job.continue_final_message,
            )
            _, prompts = accepted(await self.chats.render_chat(request))
        prompt: EngineInput
        (prompt,) = prompts
        return prompt
