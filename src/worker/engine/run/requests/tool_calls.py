"""Calls of tools that a model wrote wrong, in answers of Anthropic's API.

There a call's input is an object. vLLM's server raises if a model has written something else, or
was cut while it wrote, as if the request were wrong: but a caller can't do anything about it.
"""

import json
import logging
from typing import Any

from worker.engine.seam.patches import TO_MESSAGES

log = logging.getLogger(__name__)


def keep_what_was_written(messages: Any) -> None:
    """Let what is no object come as text, with the answer's own end, instead of a call.

    A call with an empty input would be worse: it may be run.

    Args:
        messages: vLLM's ``AnthropicServingMessages``; None if the model does not generate.
    """
    if messages is None:
        return

    def converted(answer: Any) -> Any:
        choice = answer.choices[0]
        message = choice.message
        wrong = [call for call in message.tool_calls if not _is_object(call.function.arguments)]
        if wrong:
            log.warning("the model wrote %d calls of tools whose input is no object", len(wrong))
            message.tool_calls = [call for call in message.tool_calls if call not in wrong]
            written = [call.function.arguments for call in wrong]
            message.content = "\n".join(filter(None, [message.content, *written]))
            if choice.finish_reason == "tool_calls" and not message.tool_calls:
                choice.finish_reason = "stop"
        return convert(answer)

    convert = TO_MESSAGES.replace(messages, converted)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
