"""Explains why a startup failed: vLLM's message, advice, and whether the machine is the cause.

Callers receive the reason only if the startup would fail on any machine. An error with an unknown
cause is attributed to the machine. Otherwise a worker with a defect would respond to jobs with its
error, although other workers could handle these jobs.
"""

import contextlib
import errno
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from worker.engine.arguments import EngineArguments
from worker.engine.options.automatic import MEMORY_OPTION
from worker.engine.options.option import join_validation_messages
from worker.engine.run.healing.core import CoreFailed
from worker.engine.seam.translation import START_ERRORS, is_out_of_memory, shorten_to_sentences
from worker.engine.start.fitting import NUM_GPU_BLOCKS_OVERRIDE
from worker.engine.start.model_files import explain_load_failure, explain_refusal
from worker.errors import MAX_MESSAGE_LENGTH, MachineUnfit, StartFailed, replace_options_by_settings

# The error of a chat template that can't handle a list as a message's content.
_TEMPLATE_REFUSAL = (
    r"a first request is refused: .*(?:can only concatenate|\W?list object\W? has no)"
)
# Advice by vLLM's message: a pattern, an option, and the text after the option's name, which may
# contain the pattern's groups.
_REMEDIES: tuple[tuple[str, str, str], ...] = (
    (r"derived max_model_len \(\w+=(\d+)", "MAX_MODEL_LEN", "={}"),
    (r"No common block size for .*MultipleOf\((\d+)\)", "BLOCK_SIZE", " to a multiple of {}"),
    (r"heads \((\d+)\) must be divisible by", "TENSOR_PARALLEL_SIZE", " to a divisor of {}"),
    (r"smaller than max_model_len \((\d+)\)", "MAX_NUM_BATCHED_TOKENS", "={} or more"),
    (r"auto-fit max_model_len|the available KV cache", NUM_GPU_BLOCKS_OVERRIDE, " to more"),
    (_TEMPLATE_REFUSAL, "CHAT_TEMPLATE_CONTENT_FORMAT", "=auto"),
    (r"equal to max_num_seqs \((\d+)\)", "MAX_NUM_BATCHED_TOKENS", "={} or more"),
)
# Explanations of messages in which vLLM does not state the cause.
_CAUSES = (
    (
        "Cannot find the config file|does not match the quantization|Config.__init__",
        "the model's own files say how it is quantized, if it is",
    ),
    ("contains custom code", "set TRUST_REMOTE_CODE=1 if you trust the repository"),
    ("Not enough allowed NUMA nodes", "this machine has no GPUs to divide a model among"),
    (
        "architectures .* are not supported|does not recognize this architecture",
        "this vLLM does not have the architecture in config.json: set another model",
    ),
    (
        "can't allocate memory|out of memory|memory was full",
        "use a machine or GPU with more memory, a smaller model, or a quantized one",
    ),
)

# Messages of drivers, GPUs, libraries and full disks, which torch, vLLM and NCCL pass on. They are
# needed if vLLM or a model's code raises an exception whose class normally means a wrong setting.
_MACHINE_ERRORS = re.compile(
    r"""
    CUDA\ driver | CUDA\ error(?!:\ out\ of\ memory) | No\ CUDA\ GPUs | NVIDIA\ driver
    | CU(?:BLAS|DNN)_STATUS | NVML | NCCL | cannot\ open\ shared\ object\ file | undefined\ symbol
    | '/(?:dev|proc|sys)/ | No\ space\ left\ on\ device | Input/output\ error
    | Too\ many\ open\ files | Stale\ file\ handle
    """,
    re.VERBOSE,
)

# Exceptions of vLLM and its libraries for wrong settings, wrong model files, and packages that the
# image lacks. They are compared by name because only a log line is left of an error in a core.
_OPERATOR_ERRORS = {
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
# Part of the messages of various exceptions for a quantization whose config lacks a key.
_QUANTIZATION_CONFIG_ERROR = "Config.__init__()"
# Further exceptions that wrong weights or a wrong configuration cause, if vLLM's loader raises
# them. A ``RuntimeError`` is one only while weights are read: creating a model also tests the GPU.
_LOADER_ERRORS = {
    "AssertionError",
    "AttributeError",
    "EOFError",
    "IndexError",
    "KeyError",
    "OverflowError",
    "SafetensorError",
    "TypeError",
    "UnpicklingError",
    "ZeroDivisionError",
}
# Error numbers of a plain ``OSError`` that mean a missing file or a wrong path. None is included
# because transformers raises ``OSError`` without a number for these.
_NOT_FOUND_ERRNOS = frozenset({None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG})
# Start of a core's error line, as ``worker.logs.reader`` stores it: the name of the exception's
# class and the number of an ``OSError``.
_ERROR_LINE = re.compile(r"(?:\w+\.)*(\w+)(?:$|: (?:\[Errno (\d+)\])?)")
# Part of vLLM's message if too little of the GPU's memory is free: another process uses it, unless
# the operator has requested more than the GPU has.
_GPU_FULL_MESSAGE = "is less than desired GPU memory utilization"

# Start of a list in vLLM's message, with hundreds of names.
_LIST_OF_ARCHITECTURES = " Supported architectures: dict_keys("

# Matches an option of vLLM in its messages: `max_model_len`, `trust_remote_code=True`.
_OPTION = re.compile(r"`([a-z]+(?:_[a-z]+)+)(=[^`\n]*)?`")

# vLLM's list of exit codes if a signal ended a core, whose last output then explains nothing.
_CRASHED_CORE = re.compile(r"Failed core proc.*\{[^}]*: -\d")


@contextlib.contextmanager
def translate_start_errors(arguments: EngineArguments, config: Any = None) -> Iterator[None]:
    """Convert vLLM's errors during startup into ``StartFailed``; ``config`` is the engine's."""
    try:
        yield
    except START_ERRORS as error:
        raise start_failure(error, arguments, error_message(error), config=config) from error


def start_failure(
    error: Exception,
    arguments: EngineArguments,
    problem: str,
    culprits: Sequence[str] = (),
    config: Any = None,
) -> StartFailed:
    """Return the error of a failed startup, with advice if there is any.

    ``problem`` is vLLM's message, ``culprits`` are the options that cause the refusal, and
    ``config`` is the engine's configuration.
    """
    text = f"vLLM could not start {arguments.model_setting}={arguments.model_name}: {problem}"
    failure = classify_start_failure(error, text, arguments.operator_options)
    advice = find_remedy(problem, arguments, culprits)
    if not advice and failure.affects_all_workers:
        # The disk may fail.
        with contextlib.suppress(OSError):
            advice = (
                explain_load_failure(arguments, config.model_config)
                if config is not None and _concerns_weights(error)
                else explain_refusal(arguments, problem)
            )
    return type(failure)(f"{text}: {advice}") if advice else failure


def _concerns_weights(error: Exception) -> bool:
    """Return whether an error may be a contradiction between the weights and the configuration."""
    if not isinstance(error, CoreFailed) or not error.loader_function:
        return False
    error_line = _ERROR_LINE.match(str(error))
    is_likely = error_line is not None and error_line[1] in _LOADER_ERRORS
    return error.loader_function == "load_weights" or is_likely


def error_message(error: BaseException, max_length: int = MAX_MESSAGE_LENGTH) -> str:
    """Return vLLM's message in one line, with settings' names; the error's class if it is blank."""
    match error:
        case ValidationError():  # str(error) repeats values and links to pydantic's documentation
            text = join_validation_messages(error)
        case KeyError():  # str(error) is only the key
            text = f"KeyError: {error}"
        case _:
            text = str(error)
    text = text.partition(_LIST_OF_ARCHITECTURES)[0]
    line = shorten_to_sentences(text, max_length) or type(error).__name__
    line = _OPTION.sub(
        lambda found: found[1].upper() + (found[2] or ""), replace_options_by_settings(line)
    )
    return line.rstrip(". ")


def find_remedy(problem: str, arguments: EngineArguments, culprits: Sequence[str] = ()) -> str:
    """Return advice on the options that vLLM refuses; blank if unknown.

    ``problem`` is vLLM's message, and ``culprits`` are the options that cause the refusal.
    """
    changes = {
        name: f"set {arguments.setting_name(name)}{value.format(*match.groups())}"
        for pattern, name, value in _REMEDIES
        if name in arguments.operator_options and (match := re.search(pattern, problem))
    }
    suggestions = [*changes.values()]
    suggestions += [
        f"leave {'it' if [*changes] == [name] else arguments.setting_name(name)} unset"
        for name in culprits
    ]
    cause = next((text for pattern, text in _CAUSES if re.search(pattern, problem)), "")
    return "; ".join(filter(None, (", or ".join(suggestions), cause)))


def classify_start_failure(
    error: Exception, message: str, options: Collection[str] = ()
) -> StartFailed:
    """Return ``MachineUnfit`` if another machine may work, otherwise ``StartFailed``.

    An error in a core is a ``RuntimeError`` with the core's error line, raised from vLLM's own
    exception about the core's exit. ``options`` are those that the operator set.
    """
    error_text = str(error)
    messages = f"{error_text}\n{error.__cause__ or ''}"
    if _CRASHED_CORE.search(messages) or _MACHINE_ERRORS.search(error_text):
        return MachineUnfit(message)
    if _GPU_FULL_MESSAGE in error_text:
        is_operator_error = MEMORY_OPTION in options
    else:
        is_operator_error = is_out_of_memory(error_text) or _is_operator_error(error, error_text)
    return StartFailed(message) if is_operator_error else MachineUnfit(message)


def _is_operator_error(error: Exception, message: str) -> bool:
    """Return whether an error is known to be caused by settings, a model's files or the image."""
    class_names = [kind.__name__ for kind in type(error).__mro__]
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, RuntimeError) and (error_line := _ERROR_LINE.match(message)):
        class_names, number = [error_line[1]], int(error_line[2]) if error_line[2] else None
    if "MachineUnfit" in class_names:
        return False
    loader_function = error.loader_function if isinstance(error, CoreFailed) else ""
    if class_names[0] == "OSError":
        # torch raises EINVAL for a checkpoint that it can't parse.
        return number in _NOT_FOUND_ERRNOS or (loader_function != "" and number == errno.EINVAL)
    if loader_function == "load_weights" and class_names[0] == "RuntimeError":
        return True
    if loader_function and class_names[0] in _LOADER_ERRORS:
        return True
    return not _OPERATOR_ERRORS.isdisjoint(class_names) or _QUANTIZATION_CONFIG_ERROR in message
