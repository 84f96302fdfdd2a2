"""Bodies of requests as LLM Engine's client writes them: null wherever a model has an optional key.

vLLM's server takes null for most keys of a body, but not for those of messages and tools.
"""

from typing import Any

# Parts of a body whose keys are OpenAI's, however deep.
PARTS = ("messages", "input", "tools", "tool_choice", "response_format")
# Keys in them under which a caller's own objects stand: null may be a value there.
OWN = ("parameters", "schema", "arguments")
# What the client calls a key, since its models can't have one of that name.
_RENAMED = {"schema_": "schema"}


def plain(body: dict[str, Any]) -> dict[str, Any]:
    """Return a body without nulls where they mean that nothing was given."""
    return {
        key: _plain(value) if key in PARTS else value
        for key, value in body.items()
        if value is not None
    }


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    named = {_RENAMED.get(key, key): item for key, item in value.items() if item is not None}
    return {key: item if key in OWN else _plain(item) for key, item in named.items()}
