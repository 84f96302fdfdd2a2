"""Corrections of vLLM's server: lost text, repeated work, and what its messages and log reveal.

``seam/patches.py`` has the reason for each.
"""

import json
import logging
import re
from collections.abc import Callable
from functools import cache
from pkgutil import resolve_name
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from worker.engine.seam.locations import import_from_vllm
from worker.engine.seam.patches import (
    CREATE_ERROR,
    INCOMPLETE_TEXT,
    PARSE_DELTA,
    TO_MESSAGES,
    TOKEN_TEXTS,
)
from worker.engine.seam.translation import translate_error
from worker.errors import MAX_MESSAGE_LENGTH

log = logging.getLogger(__name__)

# Values of ``tool_choice`` with which a model may answer with text.
FREE_CHOICES = (None, "auto")

# Beginnings of the names of loggers whose warnings quote messages, or the URLs of images, which can
# contain credentials. Before vLLM 0.32, the first one was the second; 0.33 has loggers below it.
QUOTING_LOGGERS = ("vllm.renderers.chat_utils", "vllm.entrypoints.chat_utils", "vllm.connections")

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")
TRACEBACK = re.compile(r'File "[^"\n]+", line \d+, in \S+')
PATH = re.compile(r"(?<!\w)/[\w./-]+")
ROOT_FOLDERS = frozenset("home lib mnt opt root runpod-volume srv tmp usr var workspace".split())


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

    ``parser`` is vLLM's ``DelegatingParser`` after its last delta. ``sent`` has the content of each
    delta, and whether it had tool calls.
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


@cache
def remember_token_texts() -> None:
    """Let vLLM decode each token with a log probability once, instead of in each step.

    The texts of a model's tokens take at most some megabytes.
    """
    decode: Callable[[Any, list[int]], list[str]] = TOKEN_TEXTS.original
    correct: Callable[[Any, int, list[int]], str] = INCOMPLETE_TEXT.original
    texts_by_tokenizer: WeakKeyDictionary[Any, dict[int, str]] = WeakKeyDictionary()

    def token_texts(tokenizer: Any, token_ids: list[int]) -> list[str]:
        known = texts_by_tokenizer.setdefault(tokenizer, {})
        if unknown := [*{token for token in token_ids if token not in known}]:
            known.update(zip(unknown, decode(tokenizer, unknown), strict=True))
        return [known[token] for token in token_ids]

    def correct_text(processor: Any, token: int, preceding: list[int]) -> str:
        tokenizer = processor.tokenizer
        last_texts = token_texts(tokenizer, preceding[-1:])
        is_incomplete = not any(map(_ends_within_character, last_texts))
        # A character that is incomplete with all preceding tokens is so with fewer of them.
        if is_incomplete or _ends_within_character(tokenizer.decode([*preceding, token])):
            return ""
        return correct(processor, token, preceding)

    TOKEN_TEXTS.replace_in_modules(token_texts)
    INCOMPLETE_TEXT.replace(resolve_name(INCOMPLETE_TEXT.owner), correct_text)


def _ends_within_character(text: str) -> bool:
    return text.endswith("\N{REPLACEMENT CHARACTER}")


def sanitize_message(message: str) -> str:
    """Return the beginning of a message without memory addresses, tracebacks and paths."""
    message = ADDRESS.sub(">", message[:MAX_MESSAGE_LENGTH])
    return PATH.sub(_hide_path, TRACEBACK.sub("", message)).strip()


def _hide_path(path: re.Match[str]) -> str:
    """Replace the path of a file with a placeholder; routes, fractions and web addresses stay."""
    text = path[0]
    if text.startswith("//") and not text.startswith("///"):
        return text
    root, *rest = text.strip("/").split("/")
    return "<path>" if rest and (root in ROOT_FOLDERS or "." in rest[-1]) else text


def silence_refusals() -> None:
    """Filter refusals, and warnings that quote requests, out of vLLM's log."""
    logger: logging.Logger | None = logging.getLogger("vllm")
    while logger:
        for handler in logger.handlers:
            handler.addFilter(is_loggable)
        logger = logger.parent if logger.propagate else None


def is_loggable(record: logging.LogRecord) -> bool:
    if not record.name.startswith("vllm"):
        return True
    if record.name.startswith(QUOTING_LOGGERS) and record.levelno < logging.ERROR:
        return False
    arguments = record.args if isinstance(record.args, tuple) else ()
    error = record.exc_info[1] if record.exc_info else None
    refusal = import_from_vllm("ErrorResponse")
    return not any(
        isinstance(value, refusal) or translate_error(value) for value in (*arguments, error)
    )
