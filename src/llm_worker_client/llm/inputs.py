"""The inputs of a call: prompts or conversations, their sampling parameters and adapters."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

# Internal fields of vLLM's class, which have no effect because outputs are always complete.
INTERNAL_FIELDS = frozenset({"output_kind", "output_text_buffer_length", "skip_clone"})
# Parameter that is sent even with vLLM's default; the endpoint's (DEFAULT_MAX_TOKENS) may differ.
_ALWAYS_SENT = "max_tokens"
GUIDED_OPTIONS = "guided_options_request"


@dataclass(kw_only=True)
class SamplingParams:
    """Sampling parameters in the worker's own format; the worker validates them.

    For a parameter that is None, the endpoint's default applies.
    """

    n: int | None = None
    best_of: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    bad_words: list[str] | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    logprobs: int | None = None
    return_token_log_probs: bool | None = None
    logprob_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    flat_logprobs: bool | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    structured_outputs: Any = None
    guided_decoding: Any = None
    guided_options_request: Any = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    guided_structural_tag: Any = None
    guided_whitespace_pattern: str | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    detokenize: bool | None = None
    repetition_detection: Any = None
    stream_interval: int | None = None
    thinking_token_budget: int | None = None
    trace_decode_token_ids: list[int] | None = None
    routed_experts_prompt_start: int | None = None
    skip_reading_prefix_cache: bool | None = None
    watermarking: bool | None = None


PARAMETER_NAMES = frozenset(field.name for field in fields(SamplingParams))


def to_job_params(params: Any, guided: Any = None) -> dict[str, Any]:
    """Return sampling parameters in the format of raw jobs, with constraints for the output.

    ``params`` are ``SamplingParams``, a dict, another object with these attributes, or None.
    """
    job_params = _read_params(params)
    if guided is not None:
        if GUIDED_OPTIONS in job_params:
            raise ValueError(f"{GUIDED_OPTIONS} is in sampling_params and an argument as well")
        job_params[GUIDED_OPTIONS] = guided
    return {name: _to_json_value(value) for name, value in job_params.items()}


def _read_params(params: Any) -> dict[str, Any]:
    if params is None:
        return {}
    if isinstance(params, Mapping):
        return {name: value for name, value in params.items() if value is not None}
    values = dict(_public_fields(params))
    if not values:
        raise TypeError(f"sampling_params: SamplingParams or a dict, not {params!r}")
    if isinstance(params, SamplingParams):
        return {name: value for name, value in values.items() if value is not None}
    defaults: dict[str, Any] = {}
    with suppress(TypeError, ValueError):
        defaults = dict(_public_fields(type(params)()))
    changed = {
        name: value
        for name, value in values.items()
        if value not in (None, [])
        and (name == _ALWAYS_SENT or name not in defaults or value != defaults[name])
    }
    if unknown := sorted(changed.keys() - PARAMETER_NAMES - INTERNAL_FIELDS):
        raise ValueError(f"sampling_params.{unknown[0]}: a job has no such parameter")
    return {name: value for name, value in changed.items() if name in PARAMETER_NAMES}


def _public_fields(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of public fields of a msgspec struct, a dataclass or any object."""
    names = getattr(owner, "__struct_fields__", getattr(owner, "__dict__", ()))
    for name in names:
        if not name.startswith("_"):
            yield name, getattr(owner, name)


def _to_json_value(value: Any) -> Any:
    """Return a JSON value unchanged, or an object's fields as a dict without None and False."""
    if value is None or isinstance(value, str | int | float | list | tuple | Mapping):
        return value
    fields = dict(_public_fields(value))
    if not fields:
        raise TypeError(f"sampling_params: {value!r} can't be sent")
    return {name: each for name, each in fields.items() if each is not None and each is not False}


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt or conversation."""

    content: Any  # the prompt as a string or as token ids, or the messages of a conversation
    params: dict[str, Any]  # several items may share one dict
    adapter: str | None  # its served name; None if the item uses the call's model
    prompt: str | None = None  # the prompt's text, if it is known

    @property
    def token_ids(self) -> list[int] | None:
        """Token ids of the prompt; None if the caller passed a text or a conversation."""
        return self.content if self.content and _are_token_ids(self.content) else None


def parse_prompts(prompts: Any) -> list[tuple[Any, str | None]]:
    """Return each prompt in its form for a job, with the text of the prompt if it is known."""
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
    """Return a pair for each conversation: its messages, and None, since it has no prompt text."""
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
