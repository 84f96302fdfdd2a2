"""What scripts ask: prompts and conversations, each with its parameters and its adapter."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_worker_client.llm.sampling import plain


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt or conversation.

    Args:
        asked: a text, token ids, or the messages of a conversation.
        params: its sampling parameters, which items may share.
        adapter: the served name of one; None: the model itself.
        prompt: its text, if it is known.
    """

    asked: Any
    params: dict[str, Any]
    adapter: str | None
    prompt: str | None = None

    @property
    def token_ids(self) -> list[int] | None:
        """The prompt's token ids, if the caller passed ids."""
        return self.asked if self.asked and _is_ids(self.asked) else None


def prompts_of(given: Any) -> list[tuple[Any, str | None]]:
    """Return each prompt as a job has it, with its text if that is known.

    Args:
        given: one or several; each a text, token ids, or a dict of either.

    Raises:
        TypeError, ValueError: one is something else, naming it by its place.
    """
    several = [given] if isinstance(given, str | Mapping) else list(given)
    if several and _is_id(several[0]):
        several = [several]
    return [_prompt(prompt, index) for index, prompt in enumerate(several)]


def _prompt(given: Any, index: int) -> tuple[Any, str | None]:
    text, ids = (given, None) if isinstance(given, str) else (None, given)
    if isinstance(given, Mapping):
        rest = {name: value for name, value in given.items() if value is not None}
        text, ids = rest.pop("prompt", None), rest.pop("prompt_token_ids", None)
        if rest:
            message = "a job has it not; chat() takes images and the like, in messages"
            raise ValueError(f"prompt {index}: {min(rest)}: {message}")
    asked = text if ids is None else ids
    if isinstance(asked, str):
        return asked, text
    asked = asked if isinstance(asked, list) else list(asked or ())
    if not asked or not _is_ids(asked):
        kind = type(given).__name__
        raise TypeError(f"prompt {index}: a text, token ids, or a dict of either, not {kind}")
    return asked, text


def conversations_of(messages: Any) -> list[tuple[Any, str | None]]:
    """Return conversations, also of a single one.

    Raises:
        TypeError: it is no conversation.
    """
    several = messages if messages and isinstance(messages[0], list | tuple) else [messages]
    for index, conversation in enumerate(several):
        if isinstance(conversation, str) or not conversation:
            kind = type(conversation).__name__
            raise TypeError(f"conversation {index}: a list of messages, not {kind}")
    return [(list(conversation), None) for conversation in several]


def items_of(
    asked: list[tuple[Any, str | None]], params: Any, adapters: Any, guided: Any = None
) -> list[Item]:
    """Return items, with parameters and adapters of one for all or one for each.

    Raises:
        ValueError: a list has another length.
        TypeError: something can't be sent.
    """
    count = len(asked)
    each = _one_per_prompt(params, count, "sampling_params")
    # Those that several items share are converted once, and stay shared.
    distinct = {id(value): plain(value, guided) for value in each}
    names = map(_adapter, _one_per_prompt(adapters, count, "lora_request"))
    for found in distinct.values():
        encoded(found, "sampling_params")
    return [
        Item(value, distinct[id(its)], name, text)
        for (value, text), its, name in zip(asked, each, names, strict=True)
    ]


def _one_per_prompt(value: Any, count: int, name: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name}: {len(value)} of them for {count} prompts")
    return list(value)


def encoded(value: Any, name: str) -> str:
    """Return the JSON of what is sent.

    Raises:
        TypeError: it has none.
    """
    try:
        return json.dumps(value, separators=(",", ":"))
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None


def _adapter(request: Any) -> str | None:
    """Return the served name of an adapter: workers know them by that, not by a path."""
    if not request:
        return None
    name = request if isinstance(request, str) else getattr(request, "lora_name", None)
    if not isinstance(name, str):
        raise TypeError(f"lora_request: a LoRARequest, or an adapter's name, not {request!r}")
    return name


def _is_ids(value: Any) -> bool:
    return all(map(_is_id, value))


def _is_id(value: Any) -> bool:
    # A bool is no token id, though Python says that it is a number.
    return isinstance(value, int) and not isinstance(value, bool)
