"""Raw jobs by their sampling parameters, in every place and spelling that they can have."""

from typing import Any

import pytest

from worker.errors import InvalidInput
from worker.job import RawJob, parse_input
from worker.job.sampling import Sampling

# Constraints of structured output.
KINDS: dict[str, Any] = {
    "json": {"type": "object"},
    "regex": "a+",
    "choice": ["a", "b"],
    "grammar": 'root ::= "a"',
    "json_object": True,
}
# Objects that can hold them.
OBJECTS = ("structured_outputs", "guided_decoding", "guided_options_request")
# How one of them can be written.
SPELLINGS = ("guided_{}", *(f"{name}.{key}" for name in OBJECTS for key in ("{}", "guided_{}")))

PLACES = ("inside", "outside")
every_place = pytest.mark.parametrize("place", PLACES)
every_kind = pytest.mark.parametrize("kind", KINDS)


def job(params: Any = None, **outside: Any) -> RawJob:
    parsed = parse_input({"prompt": "Hi", "sampling_params": params, **outside})
    assert isinstance(parsed, RawJob)
    return parsed


def sampling(params: Any = None, **outside: Any) -> Sampling:
    return job(params, **outside).sampling_params


def refusal(params: Any = None, **outside: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        job(params, **outside)
    return caught.value


def spelled(spelling: str, kind: str, value: Any) -> dict[str, Any]:
    """Write ``holder.key`` as an object that holds the key."""
    *holder, key = spelling.format(kind).split(".")
    return {holder[0]: {key: value}} if holder else {key: value}


def placed(place: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"params": params} if place == "inside" else params
