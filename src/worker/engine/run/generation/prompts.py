"""Renders the prompt of a raw job for the engine."""

from collections.abc import Mapping
from typing import Any

from vllm.renderers.inputs.preprocess import parse_model_prompt

from worker.engine.run.requests.limits import limit_texts
from worker.engine.run.server import VllmServer
from worker.engine.seam.locations import import_from_vllm
from worker.engine.seam.protocols import Client, EngineInput
from worker.engine.seam.translation import raise_for_error_response, translate_errors
from worker.errors import InvalidInput
from worker.job import RawJob
from worker.limits.bodies import RAW_SHAPE
from worker.media.loader import MediaLoader
from worker.messages import add_system_prompt

NO_TOKENIZER = (
    "This worker runs without a tokenizer (SKIP_TOKENIZER_INIT), so it takes no text: send the "
    "prompt as a list of token ids."
)


def example_input(chat_renderer: Any) -> dict[str, Any]:
    """Return a short input for a test, in the richest form that a model accepts.

    The input is a conversation, or a text if the model has no chat template, or a list of token ids
    if it has no tokenizer. ``chat_renderer`` is the renderer of vLLM's server.
    """
    tokenizer = chat_renderer.renderer.tokenizer
    if tokenizer is None:
        return {"prompt": [0]}
    if chat_renderer.chat_template or getattr(tokenizer, "chat_template", None):
        return {"messages": [{"role": "user", "content": "Hi"}]}
    return {"prompt": "Hi"}


class PromptRenderer:
    """Renders prompts with the objects of vLLM's server, as the server does for its own routes."""

    def __init__(self, client: Client, server: VllmServer, system_prompt: str | None) -> None:
        self._client = client
        # Renderer of conversations in vLLM's server.
        self.chat_renderer = server.state.online_renderer
        self._system_prompt = system_prompt

    async def render_job_prompt(
        self, job: RawJob, chat_template: str | None = None, media: MediaLoader | None = None
    ) -> EngineInput:
        """Render the prompt or the conversation of a job; its sampling parameters are not used.

        Only trusted callers may pass a ``chat_template``, which replaces the model's, or omit
        ``media``: without a loader vLLM fetches media itself, without the worker's checks.
        """
        messages = self.chat_messages(job)
        if messages is None:
            limit_texts(self._client, {"prompt": job.prompt}, RAW_SHAPE)
            return await self.render_prompt(job.prompt)
        extras = {"tools": job.tools, "chat_template_kwargs": job.chat_template_kwargs}
        limit_texts(self._client, {"messages": messages, **extras}, RAW_SHAPE)
        if self._client.renderer.tokenizer is None:
            raise InvalidInput(NO_TOKENIZER, param="messages")
        add_prompt, kwargs = job.add_generation_prompt, job.chat_template_kwargs
        body: Mapping[str, Any] = {"messages": messages, "chat_template_kwargs": kwargs}
        has_media = True
        if media is not None:
            body, has_media = await media.inline_media(body, RAW_SHAPE.text_keys)
        with translate_errors(self._client, has_media=has_media):
            request = import_from_vllm("ChatCompletionRequest")(
                messages=body["messages"],
                tools=job.tools,
                # The template renders the tools; tool calls stay text in the answer.
                tool_choice="none" if job.tools else None,
                chat_template=chat_template,
                chat_template_kwargs=kwargs,
                add_generation_prompt=not job.continue_final_message
                if add_prompt is None
                else add_prompt,
                continue_final_message=job.continue_final_message,
            )
            _, prompts = raise_for_error_response(await self.chat_renderer.render_chat(request))
        prompt: EngineInput
        (prompt,) = prompts
        return prompt

    def chat_messages(self, job: RawJob) -> list[dict[str, Any]] | None:
        """Return the messages for the chat template; None if the job is not a conversation."""
        messages = job.chat_messages
        return None if messages is None else add_system_prompt(messages, self._system_prompt)

    async def render_prompt(self, prompt: Any) -> EngineInput:
        renderer = self._client.renderer
        if renderer.tokenizer is None:
            ids = prompt.get("prompt_token_ids") if isinstance(prompt, dict) else prompt
            if not isinstance(ids, list):
                raise InvalidInput(NO_TOKENIZER, param="prompt")
            # Unknown ids would kill the engine; with a tokenizer vLLM itself refuses them.
            size = self._client.model_config.get_vocab_size()
            if unknown := next((id_ for id_ in ids if not 0 <= id_ < size), None):
                raise InvalidInput(f"Token id {unknown} is out of vocabulary", param="prompt")
        with translate_errors(self._client):
            parsed = parse_model_prompt(self._client.model_config, prompt)
            (rendered,) = await renderer.render_cmpl_async([parsed])
        return rendered
