"""What a start is refused for: vLLM's words, and the settings without which it would not be."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from textwrap import shorten

from pydantic import ValidationError

from worker.engine.arguments import EngineArguments
from worker.engine.options.option import reasons
from worker.engine.seam.translation import START_ERRORS
from worker.engine.start.blame import blamed, quoting_settings
from worker.engine.start.fitting import BLOCKS
from worker.errors import LONGEST_MESSAGE, StartFailed, in_settings

# A template that can't add a list to a text, or look for one in it.
_TEMPLATE = r"a first request is refused: (?:can only concatenate|\W?list object\W? has no)"
# What to set an option to, by what vLLM says: a pattern, the option, and the words, into which the
# pattern's groups go.
_INSTEAD: tuple[tuple[str, str, str], ...] = (
    (r"derived max_model_len \(\w+=(\d+)", "MAX_MODEL_LEN", "={}"),
    (r"No common block size for .*MultipleOf\((\d+)\)", "BLOCK_SIZE", " to a multiple of {}"),
    (r"heads \((\d+)\) must be divisible by", "TENSOR_PARALLEL_SIZE", " to a divisor of {}"),
    (r"smaller than max_model_len \((\d+)\)", "MAX_NUM_BATCHED_TOKENS", "={} or more"),
    (r"auto-fit max_model_len|the available KV cache", BLOCKS, " to more"),
    (_TEMPLATE, "CHAT_TEMPLATE_CONTENT_FORMAT", "=auto"),
    (r"equal to max_num_seqs \((\d+)\)", "MAX_NUM_BATCHED_TOKENS", "={} or more"),
)
# What is behind it, where vLLM does not say so.
_BEHIND = (
    (
        "Cannot find the config file|does not match the quantization|Config.__init__",
        "the model's own files say how it is quantized, if it is",
    ),
    ("contains custom code", "set TRUST_REMOTE_CODE=1 if you trust the repository"),
    ("Not enough allowed NUMA nodes", "this machine has no GPUs to divide a model among"),
)


@contextlib.contextmanager
def start_failures(arguments: EngineArguments) -> Iterator[None]:
    """Raise what vLLM raises for what it can't start with as ``StartFailed``."""
    try:
        yield
    except START_ERRORS as error:
        problem = words(error)
        raise failure(error, arguments, problem, remedy(problem, arguments)) from error


def failure(error: Exception, arguments: EngineArguments, problem: str, change: str) -> StartFailed:
    """Return the error of a start: what is wrong, in vLLM's words, and what to set instead."""
    message = f"vLLM could not start {arguments.model_name}: {problem}"
    return blamed(error, f"{message}: {change}" if change else message, arguments.given)


def words(error: BaseException, most: int = LONGEST_MESSAGE) -> str:
    """Return vLLM's message in one line, with settings in place of its options.

    ``most``: characters; what is longer is cut at a word.
    """
    match error:
        case ValidationError():  # its own text repeats values, and refers to pages about pydantic
            text = reasons(error)
        case KeyError():  # its own text is the key alone
            text = f"KeyError: {error}"
        case _:
            text = str(error)
    line = shorten(text, most, placeholder=" …") or type(error).__name__
    return quoting_settings(in_settings(line)).rstrip(". ")


def remedy(problem: str, arguments: EngineArguments, unset: Sequence[str] = ()) -> str:
    """Return what to set instead.

    Args:
        problem: in vLLM's words.
        arguments: of the engine.
        unset: options without any one of which vLLM would not say it.
    """
    changes = {
        name: f"set {arguments.setting(name)}{value.format(*match.groups())}"
        for pattern, name, value in _INSTEAD
        if name in arguments.given and (match := re.search(pattern, problem))
    }
    texts = [*changes.values()]
    texts += [
        f"leave {'it' if [*changes] == [name] else arguments.setting(name)} unset" for name in unset
    ]
    behind = next((text for pattern, text in _BEHIND if re.search(pattern, problem)), "")
    return "; ".join(filter(None, (", or ".join(texts), behind)))
