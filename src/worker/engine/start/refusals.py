"""Explains why a start failed: the message, the setting or file to change, and whose fault it is.

``explain_failure`` is the only way from an error of vLLM, its libraries or a check to the error of
the start, in all phases, for the log, the doctor and callers. It reads three tables: the causes
that are the machine's (``MACHINE_CAUSES``), the remedies for messages (``OPTION_REMEDIES`` and
``REMEDIES``), and the looks at the model's files, for causes that no message names (``LOOKS``).

The rule for callers: an error is the machine's if the driver, the system or a signal has raised it,
so that another worker answers the jobs. Everything else is the model's or the settings': the same
code with the same files fails in the same way on every worker, and callers get the error.
"""

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors import SafetensorError

from worker.engine.arguments import EngineArguments
from worker.engine.cache_plan import plan_kv_cache
from worker.engine.machine import Gpu
from worker.engine.model_config import (
    architectures_in,
    create_yarn_overrides,
    read_config,
    registered_model_names,
)
from worker.engine.options.automatic import MEMORY_OPTION
from worker.engine.options.option import join_validation_messages
from worker.engine.run.core import CoreFailed
from worker.engine.seam.translation import is_out_of_memory, shorten_to_sentences
from worker.engine.start.checks import NUM_GPU_BLOCKS_OVERRIDE
from worker.errors import MAX_MESSAGE_LENGTH, MachineUnfit, StartFailed, replace_options_by_settings
from worker.settings import history
from worker.store import Artifact, disk
from worker.store.files import (
    CONFIG,
    CONFIGS,
    INDEX,
    MODEL_CONFIGS,
    is_vocabulary,
)

# Patterns of the errors for which another machine may work, and their sources. They are
# searched in the name of the exception's class and in its message: vLLM and the code of models
# raise an error again as an exception of their own, and only a line of text is left of a core's.
MACHINE_CAUSES = {
    r"CUDA driver|NVIDIA driver|No CUDA GPUs|NVML|system not yet initialized": "the driver",
    r"CUDA error|CU(?:BLAS|DNN)_STATUS|launch timed out": "the GPU",
    r"NCCL|\bDist\w*Error\b": "the connection between GPUs",
    r"^(?:\w+\.)*(?:Connection\w*|BrokenPipe|Timeout)Error\b|Did not receive response|"
    r"already in use": "another process",
    r"cannot open shared object file|undefined symbol|'/(?:dev|proc|sys)/": "the system",
    # The numbers are those of missing files and wrong paths, which are the operator's. torch raises
    # 22 for a checkpoint that it can't parse.
    r"\[Errno (?!(?:2|20|21|22|36)\])\d+\]|No space left on device|Input/output error|Stale file "
    r"handle|Too many open files": "the system or a disk",
    r"^(?:Fatal Python error|terminate called|free\(\)|malloc\(\)|ended by SIG)": "a crash",
    # vLLM's message, and ours, about a core whose output has no exception.
    r"^(?:Engine core initialization failed|for an unknown reason)": "a core that gave no reason",
    r"^(?:\w+\.)*MachineUnfit\b": "a check of the machine",
}
# vLLM's list of exit codes if a signal ended a core, whose last output then explains nothing.
_ENDED_BY_SIGNAL = re.compile(r"Failed core proc.*\{[^}]*: -\d")
# Start of a core's error line, as ``worker.logs.reader`` stores it: the name of the exception's
# class.
_ERROR_LINE = re.compile(r"(?:\w+\.)*(\w+)(?:$|: )")
# Part of vLLM's message if too little of the GPU's memory is free: another process uses it, unless
# the operator has requested more than the GPU has.
_GPU_FULL_MESSAGE = "is less than desired GPU memory utilization"

# A text with the groups of a message's pattern, or a function of the message's groups.
Advice = str | Callable[[re.Match[str]], str]


def _advise_on_quantization(match: re.Match[str]) -> str:
    removal = history.find_removal("choices", f"QUANTIZATION={match[1]}")
    known = f"vLLM {removal.last} supported it; " if removal else ""
    return f"{known}use a checkpoint with another quantization"


_TRUST_ADVICE = "set TRUST_REMOTE_CODE=1 if you trust the repository"
# Advice on an option that the operator has set, by vLLM's message: the option, and the text after
# its name. A text may contain the pattern's groups.
OPTION_REMEDIES: tuple[tuple[str, str, Advice], ...] = (
    (r"derived max_model_len \(\w+=(\d+)", "MAX_MODEL_LEN", "={}"),
    (r"No common block size for .*MultipleOf\((\d+)\)", "BLOCK_SIZE", " to a multiple of {}"),
    (r"heads \((\d+)\) must be divisible by", "TENSOR_PARALLEL_SIZE", " to a divisor of {}"),
    (r"smaller than max_model_len \((\d+)\)", "MAX_NUM_BATCHED_TOKENS", "={} or more"),
    (r"auto-fit max_model_len|the available KV cache", NUM_GPU_BLOCKS_OVERRIDE, " to more"),
    # A chat template that can't handle a list as a message's content.
    (
        r"a first request is refused: .*(?:can only concatenate|\W?list object\W? has no)",
        "CHAT_TEMPLATE_CONTENT_FORMAT",
        "=auto",
    ),
    (
        "expected target modules|doesn't contain tensors",
        "LORA_MODULES",
        " to adapters of this model",
    ),
    (r"equal to max_num_seqs \((\d+)\)", "MAX_NUM_BATCHED_TOKENS", "={} or more"),
    ("Tokenizer not available", "SKIP_TOKENIZER_INIT", "=0"),
)
# Advice by vLLM's message, whatever the settings are.
REMEDIES: tuple[tuple[str, Advice], ...] = (
    (r"Unknown quantization method: '?([\w-]+)", _advise_on_quantization),
    (
        "Cannot find the config file|does not match the quantization|Config.__init__",
        "the model's own files say how it is quantized, if it is",
    ),
    ("contains custom code", _TRUST_ADVICE),
    (
        "Can't load (?:(?:image |video )?processor|feature extractor)",
        "copy the whole model again, with the files of its processor",
    ),
    ("does not support LoRA", "vLLM can serve the model only with ENABLE_LORA=0"),
    (
        r"Unsupported CPU attention configuration: head_dim=(\d+)",
        "vLLM has no attention with heads of {} numbers on CPUs: use a GPU, or another model",
    ),
    (
        r"'_C' object has no attribute|_C::\w+\(\) expected at most 0 argument",
        "this build of vLLM for CPUs lacks the kernel: use a GPU, or a model that is not quantized",
    ),
    ("first request is empty", "set CUSTOM_CHAT_TEMPLATE to a template that renders messages"),
    ("Not enough allowed NUMA nodes", "this machine has no GPUs to divide a model among"),
    (
        "can't allocate memory|out of memory|memory was full",
        "use a machine or GPU with more memory, a smaller model, or a quantized one",
    ),
)

# Settings that replace the model's configuration, and others that change the weights that vLLM
# expects, the likeliest cause first.
_CONFIG_SETTINGS = ("HF_OVERRIDES", "HF_CONFIG_PATH")
_SETTINGS = (*_CONFIG_SETTINGS, "LOAD_FORMAT", "QUANTIZATION", "MODEL_IMPL")
# JSON files that vLLM and its libraries read.
_JSON_FILES = (*CONFIGS, "generation_config.json", "tokenizer.json", INDEX)
# Keys of a configuration whose values are dimensions of tensors. In a mixture of experts, no tensor
# may have the last one.
_DIMENSIONS = ("vocab_size", "hidden_size")
_DENSE_DIMENSIONS = (*_DIMENSIONS, "intermediate_size")
_LAYERS = "num_hidden_layers"
_LAYER_INDEX = re.compile(r"\blayers\.(\d+)\.")
# Maximum number of files that a message names.
_MAX_FILES = 3
# Errors that wrong weights or a wrong configuration cause if vLLM's loader raises them.
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
# Start of a list in vLLM's message, with hundreds of names.
_LIST_OF_ARCHITECTURES = " Supported architectures: dict_keys("
# Matches an option of vLLM in its messages: `max_model_len`, `trust_remote_code=True`.
_OPTION = re.compile(r"`([a-z]+(?:_[a-z]+)+)(=[^`\n]*)?`")


@contextlib.contextmanager
def explain_start_errors(arguments: EngineArguments) -> Iterator[None]:
    """Convert all errors of a phase for one engine into ``StartFailed``, which names the model."""
    try:
        yield
    # vLLM, its libraries and the code of models raise any exception for an unexpected value.
    except Exception as error:
        failure = error if isinstance(error, StartFailed) else None
        if failure is None or not (failure.remedy or failure.culprits):
            failure = explain_failure(error, arguments)
        text = f"vLLM could not start {arguments.model_setting}={arguments.model_name}"
        kind = StartFailed if failure.affects_all_workers else MachineUnfit
        raise kind(f"{text}: {failure.problem}", failure.remedy, failure.culprits) from error


def explain_failure(
    error: Exception,
    arguments: EngineArguments,
    culprits: Sequence[str] = (),
    problem: str = "",
    gpu: Gpu | None = None,
) -> StartFailed:
    """Return the error of a failed phase; ``MachineUnfit`` if another machine may work.

    A core's error is a ``CoreFailed``, raised from vLLM's own exception about the core's exit.
    ``culprits`` are the options that cause the failure, if known. ``problem`` is the message, if it
    is shorter than the error's. ``gpu`` is the GPU for which a start is simulated.
    """
    problem = problem or error_message(error)
    if is_machine_fault(error, arguments.operator_options):
        return MachineUnfit(problem)
    if isinstance(error, StartFailed) and error.remedy:
        return StartFailed(error.problem, error.remedy, culprits)
    names = [] if culprits else architectures_in(read_config(arguments.vllm_args))
    if names and not registered_model_names(names) and (removal := history.explain_removal(names)):
        # Other advice would be a dead end: trusting the code of such a model doesn't bring it back.
        return StartFailed(*removal)
    remedy = _find_remedy(arguments, problem, culprits)
    if "MAX_MODEL_LEN" in culprits:
        remedy += propose_yarn(arguments, int(arguments.vllm_args.max_model_len or 0), gpu)
    if remedy:
        return StartFailed(problem, remedy, culprits)
    # The disk may fail.
    with contextlib.suppress(OSError):
        if isinstance(error, CoreFailed):
            # The core has read all other files without an error, but it may refuse the weights.
            if arguments.config is not None and _concerns_weights(error):
                remedy = explain_load_failure(arguments)
        elif not culprits:
            remedy = next(filter(None, (look(arguments, problem) for look in LOOKS)), "")
    return StartFailed(problem, remedy, culprits)


def is_machine_fault(error: Exception, options: Collection[str] = ()) -> bool:
    """Return whether another machine may work; ``options`` are those that the operator set."""
    message = str(error)
    if _ENDED_BY_SIGNAL.search(f"{message}\n{error.__cause__ or ''}"):
        return True
    if _GPU_FULL_MESSAGE in message:
        return MEMORY_OPTION not in options
    if is_out_of_memory(message):
        return False
    text = f"{type(error).__name__}\n{message}"
    return any(re.search(cause, text, re.MULTILINE) for cause in MACHINE_CAUSES)


def error_message(error: BaseException, max_length: int = MAX_MESSAGE_LENGTH) -> str:
    """Return vLLM's message in one line, with settings' names; the error's class if it is blank.

    The class precedes a message of Python's own, which is about code and not about a setting.
    """
    match error:
        case ValidationError():  # str(error) repeats values and links to pydantic's documentation
            text = join_validation_messages(error)
        case LookupError() | AttributeError() | TypeError() | AssertionError() | ArithmeticError():
            text = f"{type(error).__name__}: {error}" if str(error) else ""
        case _:
            text = str(error)
    text = text.partition(_LIST_OF_ARCHITECTURES)[0]
    line = shorten_to_sentences(text, max_length) or type(error).__name__
    line = _OPTION.sub(
        lambda found: found[1].upper() + (found[2] or ""), replace_options_by_settings(line)
    )
    return line.rstrip(". ")


def _find_remedy(arguments: EngineArguments, problem: str, culprits: Sequence[str]) -> str:
    def write(advice: Advice, match: re.Match[str]) -> str:
        return advice.format(*match.groups()) if isinstance(advice, str) else advice(match)

    if not culprits and (advice := _look_for_architecture(arguments, problem)):
        return advice
    changes = {
        name: f"set {arguments.setting_name(name)}{write(advice, match)}"
        for pattern, name, advice in OPTION_REMEDIES
        if name in arguments.operator_options and (match := re.search(pattern, problem))
    }
    suggestions = [*changes.values()]
    suggestions += [
        f"leave {'it' if [*changes] == [name] else arguments.setting_name(name)} unset"
        for name in culprits
    ]
    matches = ((advice, re.search(pattern, problem)) for pattern, advice in REMEDIES)
    cause = next((write(advice, match) for advice, match in matches if match), "")
    return "; ".join(filter(None, (", or ".join(suggestions), cause)))


def propose_yarn(arguments: EngineArguments, length: int, gpu: Gpu | None = None) -> str:
    """Propose HF_OVERRIDES for a context beyond the model's own; blank if impossible.

    The model is built with them, because the code of some models ignores them. ``gpu`` is the GPU
    for which a start is simulated.
    """
    names = architectures_in(read_config(arguments.vllm_args))
    if not (overrides := create_yarn_overrides(arguments, length)):
        return ""
    with contextlib.suppress(StartFailed):
        plan = plan_kv_cache(arguments.with_options(hf_overrides=overrides), names, 1, gpu)
        if plan.rope_factors and plan.default_context_length >= length:
            # Without spaces, the value is not broken into lines.
            value = json.dumps(overrides, separators=(",", ":"))
            effect = "for YaRN, which may make answers to short texts worse"
            return f"\nor set {arguments.prefix}HF_OVERRIDES={value} {effect}"
    return ""


def explain_load_failure(arguments: EngineArguments) -> str:
    """Return how the weights differ from the configuration, and the setting or file to change.

    The model is a directory, and vLLM has configured the arguments.
    """
    if dict(arguments.vllm_args.speculative_config or {}).get("model"):
        source = arguments.setting_name("SPECULATIVE_CONFIG")
        return f"the weights of the model, or of its draft in {source}, do not match their {CONFIG}"
    directory, model_config = Path(arguments.vllm_args.model), arguments.config.model_config
    artifact = Artifact(str(directory), load_format=str(arguments.vllm_args.load_format))
    paths = disk.weight_paths(directory, artifact)
    names = ", ".join(path.name for path in paths[:_MAX_FILES]) or "the weights"
    quantized = model_config.quantization is not None
    mismatch = "" if quantized else _find_mismatch(paths, model_config.hf_text_config)
    settings = _CONFIG_SETTINGS if mismatch else _SETTINGS
    option = next((name for name in settings if name in arguments.operator_options), None)
    if option is None:
        source, model = CONFIG, arguments.model_setting
        change = f"use the {CONFIG} of these weights, or set {model} to another model"
    else:
        source = arguments.setting_name(option)
        change = f"leave {source} unset"
    if mismatch:
        return f"{source} says {mismatch}, which does not match {names}: {change}"
    return f"{names} can't be read or does not match {source}: {change}"


def _concerns_weights(error: CoreFailed) -> bool:
    """Return whether an error may be a contradiction between the weights and the configuration."""
    line = _ERROR_LINE.match(str(error))
    is_likely = line is not None and line[1] in _LOADER_ERRORS
    return error.loader_function == "load_weights" or bool(error.loader_function and is_likely)


def _find_mismatch(paths: Sequence[Path], config: Any) -> str:
    """Return the key and value of a configuration that contradict the weights; empty if unknown."""
    shapes = dict[str, Sequence[int]]()
    for path in paths:
        # The weights may be damaged, or in another format.
        with contextlib.suppress(OSError, SafetensorError):
            shapes |= {name: shape for name, _, shape in disk.read_tensor_headers(path)}
    if not shapes:
        return ""
    sizes = {size for shape in shapes.values() for size in shape}
    has_experts = any("expert" in key for key in vars(config))
    for key in _DIMENSIONS if has_experts else _DENSE_DIMENSIONS:
        value = getattr(config, key, None)
        if isinstance(value, int) and value not in sizes:
            return f"{key}={value}"
    # The weights may have further layers: of a vision tower, or to predict several tokens.
    layers = {int(match[1]) for name in shapes if (match := _LAYER_INDEX.search(name))}
    value = getattr(config, _LAYERS, None)
    has_too_few = bool(layers) and isinstance(value, int) and value > max(layers) + 1
    return f"{_LAYERS}={value}" if has_too_few else ""


# Looks at the files of a model and of its tokenizer. Each returns the file or setting to change, or
# a blank text if it finds nothing.


def _folders(arguments: EngineArguments) -> dict[Path, str]:
    folders = {Path(arguments.vllm_args.model): arguments.model_setting}
    if tokenizer := arguments.vllm_args.tokenizer:
        folders.setdefault(Path(tokenizer), arguments.setting_name("TOKENIZER_NAME"))
    return {folder: setting for folder, setting in folders.items() if folder.is_dir()}


def _look_for_architecture(arguments: EngineArguments, problem: str) -> str:
    """Look whether a later vLLM has the model's architecture, or whether its own code may run."""
    config = read_config(arguments.vllm_args)
    names, auto_map = architectures_in(config), config.get("auto_map")
    if not names or registered_model_names(names):
        return ""
    if not re.search("architectures .* are not supported|does not recognize this arch", problem):
        return ""
    later = (history.find_first_release("architectures", name) for name in names)
    if release := next(filter(None, later), None):
        return f"use an image with vLLM {release} or a later one"
    has_code = isinstance(auto_map, dict) and any(key.startswith("AutoModel") for key in auto_map)
    if has_code and not arguments.vllm_args.trust_remote_code:
        return _TRUST_ADVICE
    return "this vLLM does not have the architecture in config.json: set another model"


def _look_for_pointers(arguments: EngineArguments, _: str) -> str:
    for folder in _folders(arguments):
        for path in sorted(folder.iterdir()):
            is_read = path.name in _JSON_FILES or is_vocabulary(path.name)
            if is_read and disk.is_lfs_pointer(path):
                return f"{path.name} is a pointer of Git LFS, not the file: run `git lfs pull`"
    return ""


def _look_for_broken_json(arguments: EngineArguments, _: str) -> str:
    for folder, setting in _folders(arguments).items():
        for name in _JSON_FILES:
            try:
                json.loads((folder / name).read_bytes())
            except FileNotFoundError:
                continue
            except (ValueError, RecursionError):
                return f"{name} is not valid JSON: copy it again, or change {setting}"
    return ""


def _look_for_configuration(arguments: EngineArguments, _: str) -> str:
    folder, replaced = Path(arguments.vllm_args.model), arguments.vllm_args.hf_config_path
    has_config = any((folder / name).is_file() for name in MODEL_CONFIGS)
    if has_config or replaced or not folder.is_dir():
        return ""
    setting = arguments.model_setting
    return f"there is no {CONFIG}: copy the whole model again, or change {setting}"


def _look_for_vocabulary(arguments: EngineArguments, problem: str) -> str:
    if "tokenizer" not in problem.lower():
        return ""
    folder = Path(arguments.vllm_args.tokenizer or arguments.vllm_args.model)
    change = f"copy the whole model again, or set {arguments.setting_name('TOKENIZER_NAME')}"
    if not folder.is_dir():
        return ""
    if any(is_vocabulary(path.name) for path in folder.iterdir()):
        return f"the tokenizer's files are damaged, or another model's: {change}"
    return f"there are no files with a vocabulary of a tokenizer: {change}"


# All looks, in this order; the first that finds a cause is the explanation.
LOOKS: tuple[Callable[[EngineArguments, str], str], ...] = (
    _look_for_pointers,
    _look_for_broken_json,
    _look_for_configuration,
    _look_for_vocabulary,
)
