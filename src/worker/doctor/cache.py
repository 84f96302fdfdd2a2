"""What the cache of an engine on a CPU holds, as vLLM's core calculates it in a start."""

from dataclasses import dataclass

from pydantic import ValidationError

from worker.doctor.candidate import Candidate
from worker.engine.options.architectures import Support
from worker.engine.start import fitting
from worker.engine.start.refusals import words
from worker.errors import StartFailed

# Characters of a refusal: vLLM's has advice that goes on.
_MOST = 300


@dataclass(frozen=True)
class Held:
    """What a cache of known size holds of a model's texts.

    Attributes:
        context: tokens of the longest text.
        unbuilt: what a start says whose layers can't even be built.
        refusal: what a start that is refused for it says.
        shorter: what a start says if it holds less than the model's own context.
    """

    context: int = 0
    unbuilt: str = ""
    refusal: str = ""
    shorter: str = ""


def held(model: Candidate, size: float, floor: int) -> Held | None:
    """Return what a cache holds; None if that is not known, or nothing is kept of a text.

    Args:
        model: an engine on this machine's CPU.
        size: bytes of the cache of each of its parts.
        floor: tokens that it must hold, where the context is as long as fits.
    """
    try:
        plan = model.plan(model.split.tensor)
    except StartFailed as error:
        # The start builds the same layers, but with memory behind them. An unknown architecture
        # and an invalid configuration have findings of their own.
        cause = error.__cause__
        told = model.support is Support.NONE or isinstance(cause, ValidationError)
        same = model.local and not told and isinstance(cause, (LookupError, ValueError))
        return Held(unbuilt=error.message) if same else None
    if not plan.specs:
        return None
    asked = model.arguments.max_model_len
    own = None if asked in (None, -1) else int(asked)
    try:
        plan.check(size, own)
    except ValueError as error:
        return Held(refusal=words(error, _MOST))
    if own:
        return Held(own)
    context = plan.fitted(size, plan.length).context
    try:
        with plan.served_with(context):
            shorter = fitting.told(model.engine, plan.config, plan.length, floor)
    except StartFailed as error:
        return Held(refusal=error.message)
    return Held(context, shorter=shorter or "")
