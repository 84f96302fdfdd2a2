"""Sampling parameters that vLLM's ``SamplingParams`` lacks, or has under another name.

They are checked and translated here. All other parameters are vLLM's own, which
``worker.engine.run.sampling`` and vLLM's server check.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from worker.errors import InvalidInput, field_error
from worker.limits.parameters import (
    GUIDED_KEYS,
    GUIDED_OBJECTS,
    cap_max_tokens,
    normalize_structured_outputs,
    remove_duplicate_items,
)
from worker.limits.work import MAX_CHOICES
from worker.validation import SAMPLING_PARAMS, drop_nulls, to_invalid_input

ChoiceCount = Annotated[int, Field(ge=1, le=MAX_CHOICES)]

# vLLM's sampling parameters that its beam search uses. It ignores all others.
BEAM_SEARCH_USES = frozenset(
    """
    ignore_eos include_stop_str_in_output logprobs max_tokens skip_special_tokens temperature
    """.split()
)
# Parameters that beam search ignores, each with a value that has no effect; nor has an empty one.
BEAM_SEARCH_IGNORES: dict[str, Any] = {
    **dict.fromkeys(
        """
        allowed_token_ids bad_words frequency_penalty logit_bias logprob_token_ids min_p min_tokens
        presence_penalty prompt_logprobs repetition_detection response_format
        routed_experts_prompt_start seed stop stop_token_ids stream_interval structured_outputs
        thinking_token_budget
        """.split()
    ),
    "repetition_penalty": 1,
    "top_k": -1,
    "top_p": 1,
}
# Parameters that only beam search reads, each with its default.
BEAM_SEARCH_ONLY: dict[str, Any] = {"length_penalty": 1.0, "early_stopping": False}
BEAM_SEARCH_IGNORED = "beam search ignores it"
BEAM_SEARCH_NEEDED = "it has an effect in beam search only: set use_beam_search, too"

# Keys of the OpenAI API and of earlier workers, with a hint for the error message.
OTHER_API_KEYS = {
    "max_completion_tokens": "raw jobs have max_tokens",
    "priority": "requests of the OpenAI API have it, if SCHEDULING_POLICY=priority",
    "response_format": 'a schema is {"sampling_params": {"structured_outputs": {"json": {...}}}}',
    "use_openai_format": (
        "answers of the OpenAI API come from "
        '{"openai_route": "/v1/chat/completions", "openai_input": {"messages": [...]}}'
    ),
}


class Sampling(BaseModel):
    """The ``sampling_params`` of a job; ``vllm_params`` are those for vLLM's own class."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, hide_input_in_errors=True)

    n: ChoiceCount = 1
    best_of: ChoiceCount | None = None
    use_beam_search: bool = False
    length_penalty: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    early_stopping: Literal[False, "never"] = False
    return_token_log_probs: bool = False

    @classmethod
    def from_params(cls, params: Any, container: str = SAMPLING_PARAMS) -> Self:
        """Validate parameters; null values count as absent.

        ``container`` is the name of the object in messages; it is empty for the body of a request,
        whose numbers may be strings, or integral floats, as for vLLM's server.
        """
        try:
            is_strict = None if container else False
            return cls.model_validate(params, strict=is_strict, context=container)
        except ValidationError as error:
            raise to_invalid_input(error, container=container) from None

    @model_validator(mode="before")
    @classmethod
    def _translate_params(cls, params: Any, info: ValidationInfo) -> Any:
        if not isinstance(params, dict):
            return params
        # pydantic's context is None if the object is validated as a field of a job.
        container = SAMPLING_PARAMS if info.context is None else info.context
        values = normalize_structured_outputs(drop_nulls(params), container)
        # In a body, duplicates have already been removed, and vLLM's server checks max_tokens.
        return (
            cap_max_tokens(remove_duplicate_items(values))
            if container == SAMPLING_PARAMS
            else values
        )

    @field_validator("best_of")
    @classmethod
    def _check_best_of(cls, best_of: int, info: ValidationInfo) -> int:
        if best_of < info.data.get("n", 1):
            raise ValueError("at least n, which are chosen from that many")
        return best_of

    @field_validator("early_stopping", mode="before")
    @classmethod
    def _check_early_stopping(cls, early_stopping: Any) -> Any:
        if early_stopping is True:
            raise ValueError("vLLM's beam search never stops early: use false or 'never'")
        return early_stopping

    @field_validator(*BEAM_SEARCH_ONLY)
    @classmethod
    def _check_beam_search_only(cls, value: Any, info: ValidationInfo) -> Any:
        is_default = value == BEAM_SEARCH_ONLY[info.field_name or ""]
        if not (is_default or info.data.get("use_beam_search")):
            raise ValueError(BEAM_SEARCH_NEEDED)
        return value

    @property
    def num_candidates(self) -> int:
        """Number of sequences to generate, of which the best ``n`` are returned."""
        return self.best_of or self.n

    @property
    def is_ranked(self) -> bool:
        """Whether complete choices are compared, so that they can't be streamed."""
        return self.use_beam_search or self.num_candidates > self.n

    @property
    def vllm_params(self) -> dict[str, Any]:
        """The parameters for vLLM's own class, with ``logprobs`` for ``return_token_log_probs``."""
        params = self.model_extra or {}
        # vLLM does not accept logprobs together with logprob_token_ids.
        requested = {"logprobs": 0} if self.return_token_log_probs else {}
        return params if "logprob_token_ids" in params else {**requested, **params}

    @property
    def body_params(self) -> dict[str, Any]:
        """The parameters as in a request's body; ``n`` is the number of sequences to generate."""
        return {
            **self.vllm_params,
            "n": self.num_candidates,
            "length_penalty": self.length_penalty,
        }

    # The methods below refuse combinations of parameters, in raw jobs and on the OpenAI path.

    def refuse_ranked_stream(self, container: str = SAMPLING_PARAMS) -> None:
        if self.is_ranked:
            name = "use_beam_search" if self.use_beam_search else "best_of"
            message = "ranked choices can only be returned at the end: leave out stream"
            raise field_error(name, message, container)

    def refuse_equal_choices(self, temperature: Any, container: str = SAMPLING_PARAMS) -> None:
        """Refuse several choices of greedy sampling without beam search: they would be equal."""
        if temperature == 0 and self.num_candidates > 1 and not self.use_beam_search:
            name = "n" if self.best_of is None else "best_of"
            message = "greedy sampling (temperature 0) gives the same text every time"
            raise field_error(name, message, container)

    def refuse_ignored_in_beam_search(
        self, names: Sequence[str], container: str = SAMPLING_PARAMS
    ) -> None:
        """Refuse parameters that beam search ignores, if the job uses beam search.

        ``names`` contains those whose values would have an effect without beam search.
        """
        if self.use_beam_search and names:
            raise field_error(names[0], BEAM_SEARCH_IGNORED, container)


# All parameters. A job may also have them next to sampling_params, where most servers have them.
PARAMETERS = (
    (BEAM_SEARCH_USES | BEAM_SEARCH_IGNORES.keys() | Sampling.model_fields.keys())
    | GUIDED_KEYS
    | GUIDED_OBJECTS
    | set(
        """
        detokenize flat_logprobs guided_decoding_backend logits_processors skip_reading_prefix_cache
        spaces_between_special_tokens trace_decode_token_ids truncate_prompt_tokens watermarking
        """.split()
    )
) - OTHER_API_KEYS.keys()


def merge_params(params: Mapping[str, Any], top_level: Mapping[str, Any]) -> dict[str, Any]:
    params = drop_nulls(params)
    if repeated := sorted(top_level.keys() & params.keys()):
        message = f"{repeated[0]} is set both in {SAMPLING_PARAMS} and next to it"
        raise InvalidInput(message, param=repeated[0])
    return {**params, **top_level}
