"""A plugin as operators write them: a tool parser with a name of its own."""

from vllm.tool_parsers import ToolParserManager
from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser


@ToolParserManager.register_module("demo_tools")
class DemoTools(Hermes2ProToolParser):  # type: ignore[misc]  # vLLM is Any to mypy
    """The demo model calls tools as Hermes does."""
