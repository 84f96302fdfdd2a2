"""Items of a call: prompts and conversations, each with its parameters and its adapter."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_worker_client.llm.sampling import to_job_params


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt or conversation.

    Args:
        content: Prompt as a string or as token ids, or the messages of a conversation.
        params: Sampling parameters; several items may share one dict.
        adapter: Served name of the adapter; None if the item uses the call's model.
        prompt: Text of the prompt, if it is known.
    """

    content: Any
    params: dict[str, Any]
    adapter: str | None
    prompt: str | None = None

    @property
    def token_ids(self) -> list[int] | None:
        """Token ids of the prompt; None if the caller passed a text or a conversation."""
        return self.content if self.content and _are_token_ids(self.content) else None


def parse_prompts(prompts: Any) -> list[tuple[Any, str | None]]:
    """Return each prompt in its form for a job, with the text of the prompt if it is known.

    Args:
        prompts: One or several prompts: strings, lists of token ids, or dicts with ``prompt`` or
            ``prompt_token_ids``.

    Raises:
        TypeError: If a prompt has another type; the message contains its index.
        ValueError: If a dict has other keys, such as those for images.
    """
    prompt_list = [prompts] if isinstance(prompts, str | Mapping) else list(prompts)
    if prompt_list and _is_token_id(prompt_list[0]):
        prompt_list = [prompt_list]
    return [_parse_prompt(prompt, index) for index, prompt in enumerate(prompt_list)]


def _parse_prompt(prompt: Any, index: int) -> tuple[Any, str | None]:
    text, ids = (prompt, None) if isinstance(prompt, str) else (None, prompt)
    if isinstance(prompt, Mapping):
        fields = {name: value for name, value in prompt.items() if value is not None}
        text, ids = fields.pop("prompt", None), fields.pop("prompt_token_ids", None)
        if fields:
            message = "jobs don't support it; pass images and other media in messages to chat()"
            raise ValueError(f"prompt {index}: {min(fields)}: {message}")
    content = text if ids is None else ids
    if isinstance(content, str):
        return content, text
    content = content if isinstance(content, list) else list(content or ())
    if not content or not _are_token_ids(content):
        kind = type(prompt).__name__
        raise TypeError(f"prompt {index}: a text, token ids, or a dict of either, not {kind}")
    return content, text


def parse_conversations(messages: Any) -> list[tuple[Any, str | None]]:
    """Return a pair for each conversation: its messages, and None, since it has no prompt text.

    Raises:
        TypeError: If a conversation is empty or a string.
    """
    conversations = messages if messages and isinstance(messages[0], list | tuple) else [messages]
    for index, conversation in enumerate(conversations):
        if isinstance(conversation, str) or not conversation:
            kind = type(conversation).__name__
            raise TypeError(f"conversation {index}: a list of messages, not {kind}")
    return [(list(conversation), None) for conversation in conversations]


def create_items(
    contents: list[tuple[Any, str | None]], params: Any, adapters: Any, guided: Any = None
) -> list[Item]:
    """Create items from the pairs of ``parse_prompts`` or ``parse_conversations``.

    ``params`` and ``adapters`` are one value for all items or a list with a value for each item;
    ``guided`` contains constraints for all outputs.

    Raises:
        ValueError: If a list doesn't have one value per item, or jobs don't support a parameter.
        TypeError: If a value has the wrong type or can't be encoded.
    """
    count = len(contents)
    params_list = _expand_per_prompt(params, count, "sampling_params")
    # Shared parameters are converted once and remain shared.
    job_params = {id(value): to_job_params(value, guided) for value in params_list}
    names = map(_read_adapter_name, _expand_per_prompt(adapters, count, "lora_request"))
    for value_params in job_params.values():
        encode_json(value_params, "sampling_params")
    return [
        Item(value, job_params[id(prompt_params)], name, text)
        for (value, text), prompt_params, name in zip(contents, params_list, names, strict=True)
    ]


def _expand_per_prompt(value: Any, count: int, name: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name}: {len(value)} of them for {count} prompts")
    return list(value)


def encode_json(value: Any, name: str) -> str:
    """Return a value as JSON; raise ``TypeError`` that contains ``name`` if it can't be encoded."""
    try:
        return json.dumps(value, separators=(",", ":"))
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None


def _read_adapter_name(request: Any) -> str | None:
    """Return the adapter's served name or None; the path in a ``LoRARequest`` is ignored."""
    if not request:
        return None
    name = request if isinstance(request, str) else getattr(request, "lora_name", None)
    if not isinstance(name, str):
        raise TypeError(f"lora_request: a LoRARequest, or an adapter's name, not {request!r}")
    return name


def _are_token_ids(value: Any) -> bool:
    return all(map(_is_token_id, value))


def _is_token_id(value: Any) -> bool:
    # In Python, a bool is also an int.
    return isinstance(value, int) and not isinstance(value, bool)
