"""Why a start fails: in vLLM's words, with what to set instead, and by whose fault.

Callers get the reason only if any machine would fail like this one. An unknown reason counts as
the machine's: a worker that answers jobs with its own defect would take them from others that can
do them.
"""

import contextlib
import errno
import re
from collections.abc import Collection, Iterator, Sequence
from textwrap import shorten

from pydantic import ValidationError

from worker.engine.arguments import EngineArguments
from worker.engine.options.automatic import SHARE
from worker.engine.options.option import reasons
from worker.engine.seam.translation import START_ERRORS, is_out_of_memory
from worker.engine.start.fitting import BLOCKS
from worker.errors import LONGEST_MESSAGE, MachineUnfit, StartFailed, in_settings

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

# What drivers, GPUs, libraries and full disks say, through torch, vLLM and NCCL. It matters where
# vLLM, or a model's own code, raises it as an error of a class that stands for a wrong setting.
_MACHINES = re.compile(
    r"""
    CUDA\ driver | CUDA\ error(?!:\ out\ of\ memory) | No\ CUDA\ GPUs | NVIDIA\ driver
    | CU(?:BLAS|DNN)_STATUS | NVML | NCCL | cannot\ open\ shared\ object\ file | undefined\ symbol
    | '/(?:dev|proc|sys)/ | No\ space\ left\ on\ device | Input/output\ error
    | Too\ many\ open\ files | Stale\ file\ handle
    """,
    re.VERBOSE,
)

# What vLLM, and the libraries below it, raise for settings, for a model's files, and for packages
# that the image lacks. Names: of an error in a core its line in the log is all there is.
_OF_WHAT_WAS_ASKED = {
    "EntryNotFoundError",
    "FileNotFoundError",
    "ImportError",
    "IsADirectoryError",
    "JSONDecodeError",
    "MemoryError",
    "ModuleNotFoundError",
    "NotADirectoryError",
    "NotImplementedError",
    "RepositoryNotFoundError",
    "StartFailed",
    "StrictDataclassError",
    "UnicodeDecodeError",
    "ValidationError",
    "ValueError",
}
# Words of it that errors of any kind have: a quantization whose file lacks a key.
_ITS_WORDS = "Config.__init__()"
# Of an ``OSError`` without a class of its own. Transformers raises it without a number.
_NOT_FOUND = frozenset({None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG})
# How a core's error begins, as ``worker.logs.reader`` notes it.
_KIND = re.compile(r"(?:\w+\.)*(\w+): (?:\[Errno (\d+)\])?")
# A GPU that somebody else fills, unless it is the operator who wants more than there is.
_FILLED = "is less than desired GPU memory utilization"

# An option of vLLM as its messages quote it: `max_model_len`, `trust_remote_code=True`.
_OPTION = re.compile(r"`([a-z]+(?:_[a-z]+)+)(=[^`\n]*)?`")

# Ended by SIGKILL, as the kernel does when memory is exhausted; vLLM names cores and their status.
_KILLED = re.compile(r"Failed core proc.*\{[^}]*: -9\b")
# Ended by another signal: whatever it had printed was not why.
_CRASHED = re.compile(r"Failed core proc.*\{[^}]*: -\d")


@contextlib.contextmanager
def start_failures(arguments: EngineArguments) -> Iterator[None]:
    """Raise what vLLM raises for what it can't start with as ``StartFailed``."""
    try:
        yield
    except START_ERRORS as error:
        raise failure(error, arguments, words(error)) from error


def failure(
    error: Exception, arguments: EngineArguments, problem: str, unset: Sequence[str] = ()
) -> StartFailed:
    """Return the error of a start, with what to set instead: see ``remedy``."""
    message = f"vLLM could not start {arguments.model_name}: {problem}"
    change = remedy(problem, arguments, unset)
    return blamed(error, f"{message}: {change}" if change else message, arguments.given)


def words(error: BaseException, most: int = LONGEST_MESSAGE) -> str:
    """Return vLLM's message in one line, cut at a word, with settings in place of its options."""
    match error:
        case ValidationError():  # its own text repeats values, and refers to pages about pydantic
            text = reasons(error)
        case KeyError():  # its own text is the key alone
            text = f"KeyError: {error}"
        case _:
            text = str(error)
    line = shorten(text, most, placeholder=" …") or type(error).__name__
    line = _OPTION.sub(lambda found: found[1].upper() + (found[2] or ""), in_settings(line))
    return line.rstrip(". ")


def remedy(problem: str, arguments: EngineArguments, unset: Sequence[str] = ()) -> str:
    """Return what to set instead of what vLLM complains about.

    ``unset`` are options without any one of which it would not.
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


def blamed(error: Exception, message: str, given: Collection[str] = ()) -> StartFailed:
    """Return the error of a failed start, of the class that says whose fault it is.

    ``error`` was raised by vLLM, or by a library below it. An error of a core is a ``RuntimeError``
    with the error's line, raised from vLLM's own for the core's end.
    """
    said = str(error)
    ended = f"{said}\n{error.__cause__ or ''}"
    if _KILLED.search(ended):
        return StartFailed(
            f"{message}. It was killed, as processes are when memory is exhausted: take a machine "
            "with more of it, a smaller model, or a quantized one"
        )
    if _CRASHED.search(ended) or _MACHINES.search(said):
        return MachineUnfit(message)
    if _FILLED in said:
        asked = SHARE in given
    else:
        asked = is_out_of_memory(said) or _is_of_what_was_asked(error, said)
    return StartFailed(message) if asked else MachineUnfit(message)


def _is_of_what_was_asked(error: Exception, said: str) -> bool:
    """Whether an error is known to be raised for settings, a model's files or the image."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    number = error.errno if isinstance(error, OSError) else None
    if kinds[0] == "RuntimeError" and (noted := _KIND.match(said)):
        kinds, number = [noted[1]], int(noted[2]) if noted[2] else None
    if "MachineUnfit" in kinds:
        return False
    if kinds[0] == "OSError":
        return number in _NOT_FOUND
    return not _OF_WHAT_WAS_ASKED.isdisjoint(kinds) or _ITS_WORDS in said
