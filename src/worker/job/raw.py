"""Prompts and conversations for the engine itself: one, or a list of them."""

import json
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import repeat
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    InstanceOf,
    ValidationInfo,
    field_validator,
    model_validator,
)

from worker.errors import InvalidInput
from worker.job.base import Job
from worker.job.sampling import MISPLACED, OUTSIDE, Sampling, gathered
from worker.limits.work import MOST_PROMPTS, MOST_REPEATED
from worker.validation import SAMPLING, without_nulls

# A list with more that are wrong is refused, not answered with an error for each.
MOST_WRONG = 100

# The first mistake in a list is enough: pydantic would keep one for each of its items.
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]


class Message(BaseModel):
    """One chat turn. The model's chat template decides which roles and further keys it knows."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, hide_input_in_errors=True)

    role: str
    content: str | Objects | None = None

    @field_validator("content")
    @classmethod
    def _text_is_text(cls, content: Any) -> Any:
        """Refuse a text part without its text, which vLLM would drop silently."""
        parts = content if isinstance(content, list) else []
        if any(part.get("type") == "text" and type(part.get("text")) is not str for part in parts):
            raise ValueError("a part of type text has its words under text, as a string")
        return content


class RawJob(Job):
    """A prompt or a conversation."""

    marks: ClassVar[frozenset[str]] = frozenset({"prompt", "messages"})
    misplaced: ClassVar[Mapping[str, str]] = MISPLACED

    prompt: str | list[int] | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    apply_chat_template: bool = False
    tools: Objects | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # None begins a turn of the assistant, unless the last message is to be continued.
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    model: str | None = None
    lora: str | None = None
    sampling_params: Sampling = Field(default_factory=Sampling)
    return_token_ids: bool = False
    stream: bool = False
    # The name of the form in which it is answered.
    format: str = "raw"

    @model_validator(mode="before")
    @classmethod
    def _gather_sampling(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Move parameters that stand next to ``sampling_params`` into them."""
        outside = {key: value for key, value in values.items() if key in OUTSIDE}
        params = values.get(SAMPLING, {})
        if not outside or not isinstance(params, dict):
            return values
        rest = {key: value for key, value in values.items() if key not in outside}
        return {**rest, SAMPLING: gathered(params, outside)}

    @field_validator("prompt", mode="before")
    @classmethod
    def _text_or_ids(cls, prompt: Any) -> Any:
        """Refuse it in one sentence: pydantic has one for every alternative."""
        ids = prompt if isinstance(prompt, list) else []
        if isinstance(prompt, str) or (ids and all(type(id_) is int and id_ >= 0 for id_ in ids)):
            return prompt
        raise ValueError("a text, or a list of token ids; prompts takes a list of prompts")

    @field_validator("apply_chat_template")
    @classmethod
    def _text_can_be_a_message(cls, apply: bool, info: ValidationInfo) -> bool:
        if apply and isinstance(info.data.get("prompt"), list):
            raise ValueError("token ids are no text that a chat template could take")
        return apply

    @model_validator(mode="after")
    def _needs_prompt(self) -> Self:
        if self.prompt is None and self.messages is None:
            raise ValueError("a prompt or messages")
        return self

    @property
    def streamed(self) -> bool:
        """Whether the answer comes piece by piece: ranked choices come all at once."""
        return self.stream and not self.sampling_params.ranked

    @property
    def conversation(self) -> list[dict[str, Any]] | None:
        """The messages for the chat template; None if the prompt is used as it is."""
        if self.messages is not None:
            return [message.model_dump(exclude_unset=True) for message in self.messages]
        if self.apply_chat_template:
            return [{"role": "user", "content": self.prompt}]
        return None

    @property
    def body(self) -> dict[str, Any]:
        """What the job holds in one object, as a request to vLLM's server has it."""
        messages = [message.model_dump(exclude_unset=True) for message in self.messages or ()]
        values = {
            "prompt": self.prompt,
            "messages": messages,
            "tools": self.tools,
            "chat_template_kwargs": self.chat_template_kwargs,
        }
        return {**without_nulls(values), **self.sampling_params.body}


class ListJob(Job):
    """Several prompts or conversations, answered concurrently."""

    marks: ClassVar[frozenset[str]] = frozenset({"prompts", "messages_list"})

    # What all items share, with an empty prompt.
    shared: InstanceOf[RawJob]
    # Validated one by one: an invalid item fails alone, in its place.
    items: tuple[InstanceOf[RawJob] | InstanceOf[InvalidInput], ...]
    stream: bool = False
    use_tqdm: bool | None = None

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Validate what all items share, then every item.

        Raises:
            InvalidInput: naming a field that is wrong for all items.
        """
        shared = dict(values)
        key = _only(shared.keys() & (cls.marks | RawJob.marks))
        prompts, params = shared.pop(key), shared.pop(SAMPLING, {})
        own = {"use_tqdm": shared.pop("use_tqdm", None), "stream": shared.pop("stream", False)}
        if not isinstance(prompts, list) or not 0 < len(prompts) <= MOST_PROMPTS:
            raise InvalidInput(f"{key}: a list of 1 to {MOST_PROMPTS:,} items", param=key)
        if isinstance(params, list) and len(params) != len(prompts):
            message = f"{SAMPLING}: {len(params)} of them for {len(prompts)} {key}"
            raise InvalidInput(message, param=SAMPLING)
        each = params if isinstance(params, list) else None
        common = RawJob.read({**shared, "prompt": "", **({} if each else {SAMPLING: params})})
        outside = {name: shared[name] for name in shared.keys() & OUTSIDE} if each else {}
        _refuse_repeated(outside, len(prompts))
        item = {"prompts": "prompt", "messages_list": "messages"}[key]
        alike = zip(prompts, each or repeat(common.sampling_params), strict=False)
        items = tuple(
            _few_wrong(
                _item(common, {item: prompt, SAMPLING: its_params, **outside})
                for prompt, its_params in alike
            )
        )
        return super().read({**own, "shared": common, "items": items})


def _only(keys: Set[str]) -> str:
    if len(keys) > 1:
        names = " and ".join(sorted(keys))
        raise InvalidInput(f"{names}: one of them, not more", param=min(keys))
    return next(iter(keys))


def _refuse_repeated(outside: Mapping[str, Any], count: int) -> None:
    """Refuse what would be merged into, and checked with, the own parameters of each item."""
    if outside and (size := len(json.dumps(outside)) * count) > MOST_REPEATED:
        name = min(outside)
        message = f"{count:,} times for as many {SAMPLING} it has {size:,} characters"
        raise InvalidInput(f"{name}: {message}, at most {MOST_REPEATED:,}", param=name)


def _few_wrong(items: Iterable[RawJob | InvalidInput]) -> Iterator[RawJob | InvalidInput]:
    wrong = 0
    for index, item in enumerate(items):
        if isinstance(item, InvalidInput):
            wrong += 1
            if wrong > MOST_WRONG:
                message = f"more than {MOST_WRONG} items are wrong; item {index}: {item.message}"
                raise InvalidInput(message, param=item.param)
        yield item


def _item(common: RawJob, values: Mapping[str, Any]) -> RawJob | InvalidInput:
    """Validate what is an item's own, and join it to what all items share: that is not copied."""
    prompt = values.get("prompt")
    if isinstance(prompt, str) and values[SAMPLING] is common.sampling_params:
        return common.model_copy(update={"prompt": prompt})  # any text is one
    try:
        own = RawJob.read(
            without_nulls({**values, "apply_chat_template": common.apply_chat_template})
        )
    except InvalidInput as error:
        return error
    differs = {name: getattr(own, name) for name in ("prompt", "messages", SAMPLING)}
    return common.model_copy(update=differs)
