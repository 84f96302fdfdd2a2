"""From a raw job to what the engine takes: the rendered prompt, and the adapter it is for."""

from http import HTTPStatus
from typing import Any

from pydantic import ValidationError

from worker.engine.adapters import Adapters
from worker.engine.locations import find
from worker.engine.translation import shows_media, translated, wrong_shape
from worker.errors import InvalidInput, RefusedByEngine
from worker.job import RawJob
from worker.job.base import with_system_prompt

NO_TOKENIZER = (
    "This worker runs without a tokenizer (SKIP_TOKENIZER_INIT), so it takes no text: send the "
    "prompt as a list of token ids."
)


class Prompts:
    """Renders with what vLLM's own server renders with, so both paths say the same to the model."""

    def __init__(
        self, client: Any, state: Any, adapters: Adapters, system: str | None = None
    ) -> None:
        """``system`` opens conversations that have no system message."""
        self._client = client
        self._model_config = client.model_config
        self._renderer = client.renderer
        self._chats = state.online_renderer
        self._models = state.openai_serving_models
        self._adapters = adapters
        self._system = system

    @property
    def greeting(self) -> dict[str, Any]:
        """The richest input that the model takes: messages, a text or token ids."""
        tokenizer = self._renderer.tokenizer
        if tokenizer is None:
            return {"prompt": [0]}
        if self._chats.chat_template or getattr(tokenizer, "chat_template", None):
            return {"messages": [{"role": "user", "content": "Hi"}]}
        return {"prompt": "Hi"}

    async def render(self, job: RawJob, chat_template: str | None = None) -> Any:
        """Turn a prompt or a conversation into vLLM's ``EngineInput``.

        Args:
            job: its sampling parameters don't matter here.
            chat_template: in place of the model's own, where the operator trusts callers.

        Raises:
            InvalidInput: text without a tokenizer.
            RefusedByEngine: vLLM's own verdict on messages or tools.
            Exception: vLLM's own, for a prompt that is too long or a template that fails.
        """
        if (conversation := self.conversation(job)) is None:
            return await self.complete(job.prompt)
        if self._renderer.tokenizer is None:
            raise InvalidInput(NO_TOKENIZER, param="messages")
        return await self._render_chat(job, conversation, chat_template)

    def conversation(self, job: RawJob) -> list[dict[str, Any]] | None:
        """Return the turns that the chat template renders, if a job is a conversation."""
        turns = job.conversation
        return None if turns is None else with_system_prompt(turns, self._system)

    async def complete(self, prompt: Any) -> Any:
        """Turn a text, token ids or one of vLLM's prompt dicts into its ``EngineInput``.

        Raises:
            InvalidInput: text without a tokenizer.
            Exception: vLLM's own, for a prompt that is too long or holds unknown ids.
        """
        if self._renderer.tokenizer is None:
            self._check_ids(prompt)
        parsed = find("parse_model_prompt")(self._model_config, prompt)
        (rendered,) = await self._renderer.render_cmpl_async([parsed])
        return rendered

    def _check_ids(self, prompt: Any) -> None:
        """Do without a tokenizer what vLLM does with one: an unknown id would kill the engine."""
        ids = prompt.get("prompt_token_ids") if isinstance(prompt, dict) else prompt
        if not isinstance(ids, list):
            raise InvalidInput(NO_TOKENIZER, param="prompt")
        size = self._model_config.get_vocab_size()
        if unknown := next((id_ for id_ in ids if not 0 <= id_ < size), None):
            raise InvalidInput(f"Token id {unknown} is out of vocabulary", param="prompt")

    async def _render_chat(
        self, job: RawJob, conversation: list[dict[str, Any]], chat_template: str | None
    ) -> Any:
        begins = job.add_generation_prompt
        try:
            request = find("ChatCompletionRequest")(
                messages=conversation,
                tools=job.tools,
                # The model is shown the tools; its calls stay in the text, which is the answer.
                tool_choice="none" if job.tools else None,
                chat_template=chat_template,
                chat_template_kwargs=job.chat_template_kwargs,
                add_generation_prompt=not job.continue_final_message if begins is None else begins,
                continue_final_message=job.continue_final_message,
            )
        except ValidationError as invalid:
            raise wrong_shape(invalid) from None
        with translated(self._client, shows_media=shows_media(conversation)):
            rendered = await self._chats.render_chat(request)
        _, (prompt,) = _unless_refused(rendered)
        return prompt

    async def adapter(self, job: RawJob) -> Any:
        """Find the ``LoRARequest`` of the adapter that a job names; None for the model itself.

        Raises:
            RefusedByEngine: nothing of that name is served.
            InvalidInput: two adapters are named.
        """
        names = {name for name in (job.model, job.lora) if name is not None}
        names -= {name for name in names if name == job.model and self._models.is_base_model(name)}
        if len(names) > 1:
            raise InvalidInput("model and lora name two adapters", param="lora")
        for name in names:
            return await self.named(name, "model" if name == job.model else "lora")
        return None

    async def named(self, name: str, param: str = "lora") -> Any:
        """Return the ``LoRARequest`` of an adapter that is served, or that the volume has.

        Raises:
            RefusedByEngine: there is none of that name, or it can't be loaded.
        """
        await self._adapters.adopt(name)
        if (loaded := self._models.lora_requests.get(name)) is not None:
            return loaded
        # Each name that vLLM looks for in vain, it keeps a lock for.
        looked_for = bool(self._models.lora_resolvers)
        resolved = await self._models.resolve_lora(name) if looked_for else None
        if (
            resolved is None
            or getattr(getattr(resolved, "error", None), "code", None) == HTTPStatus.NOT_FOUND
        ):
            bases = [base.name for base in self._models.base_model_paths]
            served = ", ".join([*bases, *self._models.lora_requests])
            message = f"There is no model or adapter {name!r}; this worker serves {served}."
            raise RefusedByEngine(message, status=HTTPStatus.NOT_FOUND, param=param)
        return _unless_refused(resolved)

    async def load(self, adapter: Any) -> Any:
        """Load a ``LoRARequest``'s adapter under its name, and return vLLM's own request for it.

        Not as it is: an adapter that can't be loaded would kill the engine when it is used, and an
        id that vLLM has given away already would be answered by another adapter.

        Raises:
            RefusedByEngine: it can't be loaded.
        """
        name, path = adapter.lora_name, adapter.lora_path
        known = self._models.lora_requests.get(name)
        if known is None or known.lora_path != path:
            request = find("LoadLoRAAdapterRequest")(lora_name=name, lora_path=path)
            _unless_refused(await self._models.load_lora_adapter(request))
        return self._models.lora_requests[name]


def _unless_refused(answer: Any) -> Any:
    if isinstance(answer, find("ErrorResponse")):
        error = answer.error
        raise RefusedByEngine(error.message, status=error.code, param=error.param)
    return answer
