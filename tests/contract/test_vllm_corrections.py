"""Tests of streams with tools: they have the text of the response without a stream."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT
from transformers import AutoTokenizer, TokenizersBackend
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser.abstract_parser import DelegatingParser
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager

from worker.engine.run.corrections import send_withheld_text

NAME = "job_status"
TOOL = {"type": "function", "function": {"name": NAME, "parameters": {"type": "object"}}}
CALL = f'<tool_call>\n{{"name": "{NAME}", "arguments": {{"job_id": "42"}}}}\n</tool_call>'
NAMED = {"type": "function", "function": {"name": NAME}}


def make_request(choice: Any = "auto") -> Any:
    return ChatCompletionRequest.model_validate(
        {
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": [TOOL],
            "tool_choice": choice,
        }
    )


class Answers:
    """The answers that vLLM makes of a model's text, with and without a stream.

    Args:
        tokenizer: The tokenizer of the model.
        tools: The name of a tool parser.
        reasoning: The name of a reasoning parser; None without one.
    """

    def __init__(
        self, tokenizer: TokenizersBackend, tools: str = "hermes", reasoning: str | None = None
    ) -> None:
        send_withheld_text()
        self._tokenizer = tokenizer
        reasoning_class = reasoning and ReasoningParserManager.get_reasoning_parser(reasoning)
        parsers = {
            "tool_parser_cls": ToolParserManager.get_tool_parser(tools),
            "reasoning_parser_cls": reasoning_class,
        }
        self._class: Any = type("TestedParser", (DelegatingParser,), parsers)

    def parse(self, text: str, choice: Any = "auto") -> tuple[str, list[str]]:
        """Return the content, and the names of the calls."""
        request = make_request(choice)
        parser = self._class(self._tokenizer, request.tools)
        _, content, calls = parser.parse(text, request, enable_auto_tools=True)
        return content or "", [call.name for call in calls or ()]

    def stream(self, deltas: Iterable[str], choice: Any = "auto") -> tuple[str, list[str]]:
        """Return the joined content of all deltas, and the names of the calls."""
        request = make_request(choice)
        parser = self._class(self._tokenizer, request.tools)
        content, names = "", []
        parts = [*deltas] or [""]
        for number, part in enumerate(parts, 1):
            ids = self._tokenizer.encode(part, add_special_tokens=False)
            last = number == len(parts)
            delta = parser.parse_delta(part, ids, request, prompt_token_ids=[0], finished=last)
            content += (delta and delta.content) or ""
            calls = (delta and delta.tool_calls) or ()
            names += [call.function.name for call in calls if call.function and call.function.name]
        return content, names


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> TokenizersBackend:
    found = AutoTokenizer.from_pretrained(demo_model)
    assert isinstance(found, TokenizersBackend)
    return found


PIECES = ["a", "<", ">", "[", "f(", "tool", "<tool_call>", "</tool_call>", '{"name": "', '"', "{}"]


@pytest.mark.parametrize("name", ["hermes", "pythonic", "olmo3"])
@given(parts=st.lists(st.sampled_from(PIECES), max_size=12))
def test_a_stream_without_calls_has_the_text_of_the_whole_answer(
    tokenizer: TokenizersBackend, name: str, parts: list[str]
) -> None:
    answers = Answers(tokenizer, name)
    whole, calls = answers.parse("".join(parts))
    content, names = answers.stream(parts)
    if not calls and not names:
        assert content == whole


@pytest.mark.parametrize("end", range(len(CALL) + 1))
def test_a_call_is_cut_off_as_text_until_it_has_a_name(
    tokenizer: TokenizersBackend, end: int
) -> None:
    answers, text = Answers(tokenizer), f"Look: {CALL[:end]}"
    content, names = answers.stream(text)
    if NAME + '"' in text:
        assert (content, names) == ("Look: ", [NAME])
    else:
        assert (content, names) == answers.parse(text) == (text, [])


def test_text_that_a_parser_drops_without_a_stream_is_not_sent(
    tokenizer: TokenizersBackend,
) -> None:
    """This parser takes it for calls, although there is no call."""
    answers, text = Answers(tokenizer, "phi4_mini_json"), "functools[]"
    assert answers.stream(text) == answers.parse(text) == ("", [])


def test_reasoning_is_no_withheld_text(tokenizer: TokenizersBackend) -> None:
    ReasoningParserManager.import_reasoning_parser(
        str(ROOT / "tests" / "plugins" / "reasoning_parser.py")
    )
    answers = Answers(tokenizer, reasoning="until_comma")
    text = "<tool, Look: <tool_call>"
    assert answers.stream(text) == answers.parse(text) == (" Look: <tool_call>", [])
    assert answers.stream("<tool") == answers.parse("<tool") == ("", [])


@pytest.mark.parametrize("choice", ["none", "required", NAMED])
def test_an_answer_with_another_choice_is_unchanged(
    tokenizer: TokenizersBackend, choice: Any
) -> None:
    answers = Answers(tokenizer)
    # vLLM sets this attribute of the subclass.
    answers._class.tool_parser_cls = type("Supporting", (answers._class.tool_parser_cls,), {})
    answers._class.tool_parser_cls.supports_required_and_named = True
    text = "Look: <tool_call>"
    expected = (text, []) if choice == "none" else ("", [NAME] if choice is NAMED else [])
    assert answers.stream(text, choice) == answers.parse(text, choice) == expected
