"""Sampling parameters that vLLM's ``SamplingParams`` does not have, or has under another name.

They are checked here and translated. All others are vLLM's own, which
``worker.engine.run.generation.sampling`` and vLLM's server check.
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

from worker.errors import InvalidInput
from worker.limits.parameters import cut, distinct
from worker.limits.spelling import GUIDED, GUIDED_OBJECTS, normalized
from worker.limits.work import MOST_CHOICES
from worker.validation import SAMPLING, invalid_fields, invalid_param, without_nulls

ChoiceCount = Annotated[int, Field(ge=1, le=MOST_CHOICES)]

# vLLM's sampling parameters that its beam search uses: it ignores all others.
BEAM_SEARCH_USES = frozenset(
    """
    ignore_eos include_stop_str_in_output logprobs max_tokens skip_special_tokens temperature
    """.split()
)
# Keys of bodies on the OpenAI path that it ignores, each with the value that, like an empty one,
# has no effect anyway.
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

# Parameters that may also stand next to sampling_params, where other servers have them.
OUTSIDE = GUIDED | GUIDED_OBJECTS | {"guided_decoding_backend", "return_token_log_probs"}

# The other parameters of vLLM's own: any may be written beside sampling_params by mistake.
FURTHER = frozenset(
    """
    detokenize flat_logprobs skip_reading_prefix_cache spaces_between_special_tokens
    trace_decode_token_ids watermarking
    """.split()
)
# Keys of the OpenAI API and of earlier workers, with what the raw form has in their place.
ELSEWHERE = {
    "priority": "requests of the OpenAI API have it, if SCHEDULING_POLICY=priority",
    "response_format": 'a schema is {"sampling_params": {"structured_outputs": {"json": {...}}}}',
    "use_openai_format": (
        "answers of the OpenAI API come from "
        '{"openai_route": "/v1/chat/completions", "openai_input": {"messages": [...]}}'
    ),
}


class Sampling(BaseModel):
    """``sampling_params``, translated: ``vllm`` is what is left for vLLM's own class."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, hide_input_in_errors=True)

    n: ChoiceCount = 1
    best_of: ChoiceCount | None = None
    use_beam_search: bool = False
    length_penalty: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    early_stopping: Literal[False, "never"] = False
    return_token_log_probs: bool = False

    @classmethod
    def read(cls, params: Any, holder: str = SAMPLING) -> Self:
        """Validate parameters; null values count as absent.

        Args:
            params: the object that holds them.
            holder: its name in messages; empty if it is a request's whole body.

        Raises:
            InvalidInput: naming the parameter.
        """
        try:
            return cls.model_validate(params, context=holder)
        except ValidationError as error:
            raise invalid_fields(error, holder=holder) from None

    @model_validator(mode="before")
    @classmethod
    def _translate(cls, params: Any, info: ValidationInfo) -> Any:
        if not isinstance(params, dict):
            return params
        # As a field of a job it is validated without a context.
        holder = SAMPLING if info.context is None else info.context
        values = normalized(without_nulls(params), holder)
        # A body's are left to vLLM's server, which cuts them, or refuses them.
        return cut(distinct(values)) if holder == SAMPLING else values

    @field_validator("best_of")
    @classmethod
    def _at_least_n(cls, best_of: int, info: ValidationInfo) -> int:
        if best_of < info.data.get("n", 1):
            raise ValueError("at least n, which are chosen from that many")
        return best_of

    @field_validator("early_stopping", mode="before")
    @classmethod
    def _as_vllm_searches(cls, early_stopping: Any) -> Any:
        if early_stopping is True:
            raise ValueError(
                "vLLM's beam search goes on until no better answer can come: false or 'never'"
            )
        return early_stopping

    @field_validator("length_penalty", "early_stopping")
    @classmethod
    def _of_beam_search(cls, value: Any, info: ValidationInfo) -> Any:
        default = cls.model_fields[info.field_name or ""].default
        if value != default and not info.data.get("use_beam_search"):
            raise ValueError("it has an effect in beam search only: set use_beam_search, too")
        return value

    @property
    def width(self) -> int:
        """How many sequences are generated, of which the best ``n`` are returned."""
        return self.best_of or self.n

    @property
    def ranked(self) -> bool:
        """Whether choices are compared when all are complete, so that none can be streamed."""
        return self.use_beam_search or self.width > self.n

    @property
    def vllm(self) -> dict[str, Any]:
        """The parameters for vLLM's own class."""
        params = self.model_extra or {}
        # logprobs and logprob_token_ids exclude each other.
        asked = {"logprobs": 0} if self.return_token_log_probs else {}
        return params if "logprob_token_ids" in params else {**asked, **params}

    @property
    def body(self) -> dict[str, Any]:
        """All parameters in one object, as a body has them."""
        return {**self.vllm, "n": self.width, "length_penalty": self.length_penalty}

    # Which of them go together, on both paths:

    def refuse_stream(self, holder: str = SAMPLING) -> None:
        """Refuse ranked choices in a stream.

        Raises:
            InvalidInput: naming the parameter that ranks them.
        """
        if self.ranked:
            name = "use_beam_search" if self.use_beam_search else "best_of"
            message = "what is compared comes when all of it is there: leave out stream"
            raise invalid_param(name, message, holder)

    def refuse_greedy(self, temperature: Any, holder: str = SAMPLING) -> None:
        """Refuse several choices that would all be the same; a beam search has none that are.

        Raises:
            InvalidInput: naming the parameter that asks for several.
        """
        if temperature == 0 and self.width > 1 and not self.use_beam_search:
            name = "n" if self.best_of is None else "best_of"
            message = "greedy sampling (temperature 0) gives the same text every time"
            raise invalid_param(name, message, holder)

    def refuse_ignored(self, names: Sequence[str], holder: str = SAMPLING) -> None:
        """Refuse parameters that a beam search ignores, though their values ask for something.

        Raises:
            InvalidInput: naming the first of them.
        """
        if self.use_beam_search and names:
            raise invalid_param(names[0], "beam search does not heed it", holder)


# Keys beside sampling_params that have no place there, with what to write.
MISPLACED = {
    **{
        name: f'it belongs into {SAMPLING}: {{"{SAMPLING}": {{"{name}": ...}}}}'
        for name in BEAM_SEARCH_USES
        | BEAM_SEARCH_IGNORES.keys()
        | FURTHER
        | Sampling.model_fields.keys()
    },
    **ELSEWHERE,
}


def gathered(params: Mapping[str, Any], outside: Mapping[str, Any]) -> dict[str, Any]:
    """Move parameters that stand next to ``sampling_params`` into them.

    Raises:
        InvalidInput: one stands in both places.
    """
    params = without_nulls(params)
    if twice := sorted(outside.keys() & params.keys()):
        message = f"{twice[0]} stands in {SAMPLING} and beside them"
        raise InvalidInput(message, param=twice[0])
    return {**params, **outside}
