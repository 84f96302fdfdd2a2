"""Whose fault it is that an engine does not start: its machine's, or that of what it was asked for.

Callers are told of the second kind only. What is unknown counts as the machine's: a worker that
answers jobs with its own defect would take them from others that can do them.
"""

import errno
import re
from collections.abc import Collection

from worker.engine.start.fitting import SHARE, is_out_of_memory
from worker.errors import MachineUnfit, StartFailed

# What drivers, GPUs, libraries and full disks say, through torch, vLLM and NCCL, whatever the kind
# of the error: code of a model's repository, and vLLM, raise some of it as another one.
_MACHINES = re.compile(
    r"""
    no\ CUDA-capable\ device | No\ CUDA\ GPUs\ are\ available | Found\ no\ NVIDIA\ driver
    | NVIDIA\ driver\ on\ your\ system | driver\ version\ is\ insufficient
    | forward\ compatibility\ was\ attempted | CUDA\ driver\ (?:initialization|error)
    | CUDA\ error(?!:\ out\ of\ memory) | CU(?:BLAS|DNN)_STATUS | launch\ timed\ out
    | (?:busy|unavailable)\ or\ unavailable | system\ not\ yet\ initialized
    | uncorrectable\ (?:ECC|NVLink) | hardware\ (?:stack\ )?error | fallen\ off\ the\ bus
    | unspecified\ launch\ failure | no\ kernel\ image | NVML | NCCL
    | cannot\ open\ shared\ object\ file | undefined\ symbol | '/(?:dev|proc|sys)/
    | No\ space\ left\ on\ device | Input/output\ error | Too\ many\ open\ files
    | Stale\ file\ handle
    """,
    re.VERBOSE,
)

# What vLLM, and the libraries below it, raise for settings, for a model's files, and for packages
# that the image lacks. Names: of an error in a core its line in the log is all there is.
_OF_WHAT_WAS_ASKED = frozenset(
    {
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
)
# Words of it that errors of any kind have: a quantization whose file lacks a key.
_ITS_WORDS = re.compile(r"Config\.__init__\(\)")
# Of an ``OSError`` without a class of its own. Transformers raises it without a number.
_NOT_FOUND = frozenset({None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG})
# How a core's error begins, as ``healing.reader`` notes it.
_KIND = re.compile(r"(?:\w+\.)*(\w+): (?:\[Errno (\d+)\])?")
# A GPU that somebody else fills, unless it is the operator who wants more than there is.
_FILLED = "is less than desired GPU memory utilization"

# An option of vLLM as its messages quote it: `max_model_len`, `trust_remote_code=True`.
_OPTION = re.compile(r"`([a-z]+(?:_[a-z]+)+)(=[^`\n]*)?`")

# Ended by SIGKILL, as the kernel does when memory is exhausted; vLLM names cores and their status.
_KILLED = re.compile(r"Failed core proc.*\{[^}]*: -9\b")
# Ended by another signal: whatever it had printed was not why.
_CRASHED = re.compile(r"Failed core proc.*\{[^}]*: -\d")


def quoting_settings(message: str) -> str:
    """Replace vLLM's options that a message quotes by settings."""
    return _OPTION.sub(lambda found: found[1].upper() + (found[2] or ""), message)


def blamed(error: Exception, message: str, given: Collection[str] = ()) -> StartFailed:
    """Return the error of a failed start, of the class that says whose fault it is.

    Args:
        error: what vLLM, or a library below it, has raised. An error of a core is a
            ``RuntimeError`` with the error's line, raised from vLLM's own for the core's end.
        message: for the log and for callers.
        given: settings that the operator has set.
    """
    message = quoting_settings(message)
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
    kinds = {kind.__name__ for kind in type(error).__mro__}
    kind, number = type(error).__name__, error.errno if isinstance(error, OSError) else None
    if kind == "RuntimeError" and (noted := _KIND.match(said)):
        kind, number = noted[1], int(noted[2]) if noted[2] else None
        kinds = {kind}
    if "MachineUnfit" in kinds:
        return False
    if kind == "OSError":
        return number in _NOT_FOUND
    return bool(kinds & _OF_WHAT_WAS_ASKED or _ITS_WORDS.search(said))
