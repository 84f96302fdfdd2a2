"""Raw jobs: a prompt or conversation for the engine, or a list of them."""

import json
from collections.abc import Mapping
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

from worker.errors import InvalidInput, field_error
from worker.job.base import Job
from worker.job.sampling_params import OTHER_API_KEYS, PARAMETERS, Sampling, merge_params
from worker.limits.work import MAX_PROMPTS, MAX_REPEATED_CHARACTERS
from worker.messages import convert_messages, mend_texts
from worker.validation import SAMPLING_PARAMS, drop_nulls

# Maximum number of invalid items. A list with more is refused as a whole.
MAX_INVALID_ITEMS = 100

# Keys of a list of prompts that its items don't have.
LIST_KEYS = {"stream", "use_tqdm", "receipt", "user", "metadata"}

# Validation stops at the first invalid item; otherwise pydantic would collect an error for each.
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]


class Message(BaseModel):
    """A message of a chat. The chat template determines the allowed roles and additional keys."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, hide_input_in_errors=True)

    role: str
    content: str | Objects | None = None


class RawJob(Job):
    """A job with one prompt or one conversation."""

    marker_keys: ClassVar[frozenset[str]] = frozenset({"prompt", "messages"})
    moved_keys: ClassVar[frozenset[str]] = PARAMETERS
    key_hints: ClassVar[Mapping[str, str]] = OTHER_API_KEYS

    prompt: str | list[int] | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    apply_chat_template: bool = False
    tools: Objects | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    # None starts a turn of the assistant, unless the last message is to be continued.
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    model: str | None = None
    lora: str | None = None
    sampling_params: Sampling = Field(default_factory=Sampling)
    return_token_ids: bool = False
    stream: bool = False
    # Name of the answer's format.
    format: str = "raw"

    @model_validator(mode="before")
    @classmethod
    def _gather_sampling(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Move sampling parameters from the top level of the input into ``sampling_params``."""
        top_level = {key: value for key, value in values.items() if key in PARAMETERS}
        if not top_level:
            return values
        others = {key: value for key, value in values.items() if key not in top_level}
        params = values.get(SAMPLING_PARAMS, {})
        if isinstance(params, dict):
            params = merge_params(params, top_level)
        return {**others, SAMPLING_PARAMS: params}

    @field_validator("messages", mode="before")
    @classmethod
    def _convert_messages(cls, messages: Any) -> Any:
        return convert_messages(messages)

    @field_validator("prompt", mode="before")
    @classmethod
    def _check_prompt(cls, prompt: Any) -> Any:
        """Refuse an invalid prompt with one message; pydantic has one for each possible type."""
        ids = prompt if isinstance(prompt, list) else []
        if isinstance(prompt, str) or (ids and all(type(id) is int and id >= 0 for id in ids)):
            return prompt
        raise ValueError("a text, or a list of token ids; prompts takes a list of prompts")

    @field_validator("apply_chat_template")
    @classmethod
    def _check_apply_chat_template(cls, apply: bool, info: ValidationInfo) -> bool:
        if apply and isinstance(info.data.get("prompt"), list):
            raise ValueError("token ids are no text that a chat template could take")
        return apply

    @model_validator(mode="after")
    def _require_prompt(self) -> Self:
        if self.prompt is None and self.messages is None:
            raise ValueError("a prompt or messages")
        return self

    @property
    def is_streamed(self) -> bool:
        """Whether the answer is sent piece by piece; ranked choices are sent together."""
        return self.stream and not self.sampling_params.is_ranked

    @property
    def chat_messages(self) -> list[dict[str, Any]] | None:
        """The messages for the chat template, or None if the prompt is used without a template."""
        if self.messages is not None:
            turns = [message.model_dump(exclude_unset=True) for message in self.messages]
        elif self.apply_chat_template:
            turns = [{"role": "user", "content": self.prompt}]
        else:
            return None
        return [mend_texts(turn) for turn in turns]

    @property
    def body_to_check(self) -> dict[str, Any]:
        """The keys that limits depend on, in the form of a request body for vLLM's server."""
        messages = [message.model_dump(exclude_unset=True) for message in self.messages or ()]
        values = {
            "prompt": self.prompt,
            "messages": messages,
            "tools": self.tools,
            "chat_template_kwargs": self.chat_template_kwargs,
        }
        return {**drop_nulls(values), **self.sampling_params.body_params}


class PromptListJob(Job):
    """Several prompts or conversations, answered concurrently."""

    marker_keys: ClassVar[frozenset[str]] = frozenset({"prompts", "messages_list"})

    # The parameters that all items share, with an empty prompt.
    shared: InstanceOf[RawJob]
    # Each item is validated separately, so that an invalid item does not fail the others.
    items: tuple[InstanceOf[RawJob] | InstanceOf[InvalidInput], ...]
    stream: bool = False
    use_tqdm: bool | None = None

    @classmethod
    def from_input(cls, values: Mapping[str, Any]) -> Self:
        """Validate the parameters that all items share, then each item."""
        shared = dict(values)
        keys = shared.keys() & (cls.marker_keys | RawJob.marker_keys)
        if len(keys) > 1:
            names = " and ".join(sorted(keys))
            raise InvalidInput(f"{names}: one of them, not more", param=min(keys))
        (key,) = keys
        prompts, params = shared.pop(key), shared.pop(SAMPLING_PARAMS, {})
        fields = {name: shared.pop(name) for name in LIST_KEYS & shared.keys()}
        if not isinstance(prompts, list) or not 0 < len(prompts) <= MAX_PROMPTS:
            raise field_error(key, f"a list of 1 to {MAX_PROMPTS:,} items")
        count = len(prompts)
        top_level: dict[str, Any] = {}
        if isinstance(params, list):
            if len(params) != count:
                raise field_error(SAMPLING_PARAMS, f"{len(params)} of them for {count} {key}")
            # Parameters next to the list are merged into those of each item.
            shared_job = RawJob.from_input({**shared, "prompt": ""})
            top_level = {name: shared[name] for name in shared.keys() & PARAMETERS}
            # A number is small, whatever its count of digits.
            large = {k: v for k, v in top_level.items() if isinstance(v, str | list | dict)}
            if large and (size := len(json.dumps(large)) * count) > MAX_REPEATED_CHARACTERS:
                message = (
                    f"{count:,} times for as many {SAMPLING_PARAMS} it has {size:,} characters"
                )
                raise field_error(min(large), f"{message}, at most {MAX_REPEATED_CHARACTERS:,}")
        else:
            shared_job = RawJob.from_input({**shared, "prompt": "", SAMPLING_PARAMS: params})
            params = repeat(shared_job.sampling_params)
        item_key = {"prompts": "prompt", "messages_list": "messages"}[key]
        items: list[RawJob | InvalidInput] = []
        invalid_count = 0
        for prompt, item_params in zip(prompts, params, strict=False):
            item = {item_key: prompt, SAMPLING_PARAMS: item_params, **top_level}
            try:
                items.append(_make_item(shared_job, item))
            except InvalidInput as error:
                invalid_count += 1
                if invalid_count > MAX_INVALID_ITEMS:
                    message = f"more than {MAX_INVALID_ITEMS} items are wrong; item {len(items)}: "
                    raise InvalidInput(message + error.message, param=error.param) from None
                # Its traceback would keep this frame, and with it the whole input.
                items.append(error.with_traceback(None))
        return super().from_input({**fields, "shared": shared_job, "items": tuple(items)})


def _make_item(shared: RawJob, values: Mapping[str, Any]) -> RawJob:
    """Return a job with an item's fields and the shared ones, which are not copied."""
    prompt = values.get("prompt")
    if isinstance(prompt, str) and values[SAMPLING_PARAMS] is shared.sampling_params:
        return shared.model_copy(update={"prompt": prompt})  # Every string is a valid prompt.
    job = RawJob.from_input(
        drop_nulls({**values, "apply_chat_template": shared.apply_chat_template})
    )
    fields = {name: getattr(job, name) for name in ("prompt", "messages", SAMPLING_PARAMS)}
    return shared.model_copy(update=fields)
