"""Bodies as LLM Engine's client writes them."""

from typing import Any

from worker.batches.llm_engine.bodies import plain

SCHEMA: dict[str, Any] = {"enum": ["a", None], "default": None, "properties": {"b": None}}


def test_nulls_of_messages_and_tools_are_left_out() -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": "{}"}, "index": None}
    sent = {
        "seed": None,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi", "x": None}], "name": None},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "description": None}}],
    }
    assert plain(sent) == {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "tool_calls": [{key: call[key] for key in ("id", "function")}]},
        ],
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }


def test_nulls_that_are_values_stay() -> None:
    sent = {
        "tools": [{"function": {"name": "f", "parameters": SCHEMA}}],
        "guided_json": SCHEMA,
        "metadata": {"a": None},
    }
    assert plain(sent) == sent


def test_a_schema_has_its_name_in_openais_api() -> None:
    sent = {"json_schema": {"name": "a", "description": None, "schema_": SCHEMA, "strict": True}}
    assert plain({"response_format": {"type": "json_schema", **sent}}) == {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": SCHEMA, "strict": True},
        }
    }
