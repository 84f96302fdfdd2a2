"""The classes take what LLM Engine's reference says, by name, in its order, with its defaults."""

import inspect
import json
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import llm_worker_client
from llm_worker_client import Completion

# Each parameter, with its default where it has one.
REFERENCE: dict[str, list[list[Any]]] = json.loads(
    Path(__file__).with_name("signatures.json").read_text()
)


@pytest.mark.parametrize("name", REFERENCE)
def test_a_method_takes_what_the_reference_says(name: str) -> None:
    method = attrgetter(name)(llm_worker_client)
    parameters = dict(inspect.signature(method).parameters)
    if method in {Completion.create, Completion.acreate}:
        # Of keys that the reference leaves out.
        assert parameters.pop("more").kind is inspect.Parameter.VAR_KEYWORD
    assert [
        [name] if one.default is inspect.Parameter.empty else [name, one.default]
        for name, one in parameters.items()
    ] == REFERENCE[name]
    assert {one.kind for one in parameters.values()} <= {inspect.Parameter.POSITIONAL_OR_KEYWORD}


def test_only_acreate_is_asynchronous() -> None:
    asynchronous = [
        name
        for name in REFERENCE
        if inspect.iscoroutinefunction(attrgetter(name)(llm_worker_client))
    ]
    assert asynchronous == ["Completion.acreate"]
