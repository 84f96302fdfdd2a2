"""Corrections of vLLM's server where it loses text, or differs from the API that it implements."""

import json
import logging
from functools import cache
from pkgutil import resolve_name
from typing import Any, NoReturn

from worker.engine.seam.patches import (
    CREATE_ERROR,
    PARSE_DELTA,
    TO_MESSAGES,
)

log = logging.getLogger(__name__)

# Values of ``tool_choice`` with which a model may answer with text.
FREE_CHOICES = (None, "auto")


def raise_errors_of_messages() -> None:
    """Make the routes of Anthropic's API raise exceptions, as all other routes do.

    They are then translated as those of other routes. vLLM's own responses lack the parameter.
    """

    def raise_error(error: Exception) -> NoReturn:
        raise error

    CREATE_ERROR.replace(resolve_name(CREATE_ERROR.owner), raise_error)


@cache
def send_withheld_text() -> None:
    """Make streams with tools end with the text that a tool parser has withheld, if any.

    A parser sends no text from the begin of a tool call on, which may be as short as "<". If the
    answer ends before the call has a name, only the response without a stream has that text.
    """
    parse_original = PARSE_DELTA.original
    message_class = resolve_name(f"{PARSE_DELTA.owner.partition(':')[0]}:DeltaMessage")

    def parse_delta(
        parser: Any,
        delta_text: str,
        delta_token_ids: list[int],
        request: Any,
        *args: Any,
        **kw: Any,
    ) -> Any:
        delta = parse_original(parser, delta_text, delta_token_ids, request, *args, **kw)
        sent: list[tuple[str, bool]] = vars(parser).setdefault("sent_deltas", [])
        if delta is not None:
            sent.append((delta.content or "", bool(delta.tool_calls)))
            if kw["finished"]:
                _drop_invented_arguments(parser, delta)
        if kw["finished"] and (text := _withheld_text(parser, request, sent)):
            delta = delta or message_class()
            delta.content = (delta.content or "") + text
        return delta

    PARSE_DELTA.replace(resolve_name(PARSE_DELTA.owner), parse_delta)


def _drop_invented_arguments(parser: Any, delta: Any) -> None:
    """Remove the arguments "{}" that the model has not written from the last delta.

    vLLM adds them if an answer is cut off in a call before its arguments, and the last delta has a
    part of a call: of this one, which a caller might then execute, or of the one before it.
    """
    tool_parser = parser._tool_parser
    calls = getattr(tool_parser, "prev_tool_call_arr", None)
    if delta.tool_calls and calls and "arguments" not in calls[-1]:
        function = delta.tool_calls[-1].function
        added = tool_parser.get_remaining_unstreamed_args()
        if function and function.arguments:
            function.arguments = function.arguments.removesuffix(added)


def _withheld_text(parser: Any, request: Any, sent: list[tuple[str, bool]]) -> str:
    """Return the end of an answer's text that was not sent; empty if it is part of a tool call.

    Args:
        parser: vLLM's ``DelegatingParser`` after its last delta.
        request: The request, whose ``tool_choice`` may require calls.
        sent: The content of each delta, and whether it had tool calls.
    """
    tool_parser, state = parser._tool_parser, parser._stream_state
    if tool_parser is None or not state.tool_call_text_started:
        return ""
    # vLLM itself makes sure that the responses of newer parsers are the same with a stream.
    is_new = getattr(tool_parser, "engine_based_streaming", False)
    is_required = (
        request.tool_choice not in FREE_CHOICES and tool_parser.supports_required_and_named
    )
    if is_new or is_required or any(has_calls for _, has_calls in sent):
        return ""
    text, sent_text = state.previous_text, "".join(content for content, _ in sent)
    if len(text) > len(sent_text):
        parsed = tool_parser.extract_tool_calls(text, request=request)
        text = (parsed.content or "") if parsed.tools_called else text
    return text[len(sent_text) :] if text.startswith(sent_text) else ""


def keep_invalid_tool_input(messages: Any) -> None:
    """Make Anthropic's API return invalid input of a tool as text, not as a call.

    In this API, the input of a tool is an object. If a model has written anything else, or was cut
    off while writing, vLLM's server raises an error as if the request were wrong. A call with an
    empty input would be worse, since the caller may execute it. ``messages`` is vLLM's
    ``AnthropicServingMessages``.
    """

    def convert_to_message(answer: Any) -> Any:
        choice = answer.choices[0]
        message = choice.message
        invalid = [
            call for call in message.tool_calls if not _is_json_object(call.function.arguments)
        ]
        if invalid:
            log.warning(
                "the model wrote %d tool calls whose input is not a JSON object", len(invalid)
            )
            message.tool_calls = [call for call in message.tool_calls if call not in invalid]
            inputs = [call.function.arguments for call in invalid]
            message.content = "\n".join(filter(None, [message.content, *inputs]))
            if choice.finish_reason == "tool_calls" and not message.tool_calls:
                choice.finish_reason = "stop"
        return convert_original(answer)

    convert_original = TO_MESSAGES.replace(messages, convert_to_message)


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
