"""Structured outputs on the real engine: what is refused, and that others go on."""

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.releases import since

Ask = Callable[..., Awaitable[list[Any]]]

CHAT = "/v1/chat/completions"
# What xgrammar can't hold an answer to.
UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
TWO_BRANCHES = {"allOf": [{"type": "string"}, {"enum": ["yes", "no"]}]}
ITSELF = "root ::= root"
ENDLESS = "root ::= a\na ::= b\nb ::= a"


def chat(schema: dict[str, Any], **body: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    messages = [{"role": "user", "content": "Hi"}]
    return {
        "openai_route": CHAT,
        "openai_input": {"messages": messages, "response_format": form, **body},
    }


def error_of(chunk: Any) -> dict[str, Any]:
    """Return the error that a job failed with: on the OpenAI path its text is JSON."""
    error = chunk["error"]
    found: dict[str, Any] = json.loads(error) if isinstance(error, str) else error
    inner: dict[str, Any] = found.get("error", found)
    return inner


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(UNIQUE, id="unique"),
        pytest.param(
            TWO_BRANCHES, id="branches", marks=since("0.32", "vLLM let any JSON pass for it")
        ),
    ],
)
async def test_a_schema_that_the_backend_cannot_hold_is_refused_each_time(
    schema: dict[str, Any], ask: Ask
) -> None:
    for _ in range(2):
        (failed,) = await ask(**chat(schema))
        assert error_of(failed)["code"] == 400


def responses(grammar: str, **body: Any) -> dict[str, Any]:
    form = {"structured_outputs": {"grammar": grammar}}
    return {"openai_route": "/v1/responses", "openai_input": {"input": "Hi", **form, **body}}


def raw(stream: bool = False, **params: Any) -> dict[str, Any]:
    return {"prompt": "Hi", "sampling_params": params, "stream": stream}


@pytest.mark.parametrize(
    "job",
    [
        raw(guided_grammar=ENDLESS),
        raw(guided_grammar=ITSELF),
        raw(guided_json={"$ref": "#"}),
        raw(guided_json={"$ref": "#"}, stream=True),
        chat({"$ref": "#"}),
        chat({"$ref": "#"}, stream=True),
        responses(ENDLESS),
        responses(ENDLESS, stream=True),
        responses(ITSELF),
    ],
)
async def test_what_nothing_satisfies_is_the_callers_mistake(job: dict[str, Any], ask: Ask) -> None:
    failed = (await ask(**job))[-1]
    assert error_of(failed)["code"] == 400
    assert "nothing satisfies it" in error_of(failed)["message"]


async def test_what_nothing_satisfies_fails_each_prompt_of_a_list(ask: Ask) -> None:
    (answered,) = await ask(prompts=["Hi", "Ho"], sampling_params={"guided_grammar": ENDLESS})
    errors = [one["error"] for one in answered["outputs"]]
    assert [error["code"] for error in errors] == [400, 400]
    assert all("nothing satisfies it" in error["message"] for error in errors)


async def test_what_compiles_is_answered(ask: Ask) -> None:
    (answered,) = await ask(
        prompt="Hi", sampling_params={"guided_regex": "[0-9]{4}", "max_tokens": 9}
    )
    (choice,) = answered["choices"]
    assert "".join(choice["tokens"]).isdigit()


async def test_a_schema_may_list_several_types(ask: Ask) -> None:
    schema = {"type": ["integer", "null"]}
    (answered,) = await ask(**raw(guided_json=schema, max_tokens=9))
    assert "error" not in answered


@pytest.mark.parametrize("wrong", [{"guided_regex": "("}, {"guided_grammar": "root ::= ("}])
async def test_what_is_wrong_is_told_without_where_xgrammar_found_it(
    wrong: dict[str, Any], ask: Ask
) -> None:
    error = error_of((await ask(**raw(**wrong, max_tokens=9)))[-1])
    assert error["code"] == 400
    assert error["message"]
    assert not re.search(r"\.cc|\d:\d\d:\d\d", error["message"])
