"""Creates vLLM's configuration of an engine, and finds the settings that vLLM refuses."""

import contextlib
import copy
import dataclasses
from argparse import Namespace
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

from worker.engine.arguments import EngineArguments, StartupContext
from worker.engine.machine import Gpu, simulate_gpu
from worker.engine.model_config import CONFIG_ERRORS
from worker.engine.seam.locations import import_from_vllm
from worker.engine.start.model_files import explain_refusal
from worker.engine.start.refusals import error_message, find_remedy, start_failure
from worker.engine.start.tables import CORE_CHECKS, STEPS
from worker.errors import StartFailed

# Options that select the model. They are not reset to find the cause of a refusal, since that would
# select another model.
_MODEL_OPTIONS = frozenset({"MODEL", "REVISION", "HF_CONFIG_PATH"})
# Maximum length of a message in characters: some messages contain long advice or list everything
# that vLLM supports.
_MAX_MESSAGE_LENGTH = 400
_REFUSAL_ERRORS = (*CONFIG_ERRORS, StartFailed)


class ConfiguredEngine(NamedTuple):
    """An engine's final arguments, and the configuration that vLLM created from them."""

    arguments: EngineArguments
    config: Any


class ConfigRefusal(NamedTuple):
    """A reason why vLLM would refuse to start, and the settings that cause it.

    Attributes:
        problem: vLLM's message.
        remedy: Advice on other values; empty if no remedy is known.
        culprits: Options that cause the refusal; empty if the model is the cause.
        problem_on_gpu: vLLM's message with the CUDA platform of a simulated GPU, which may be about
            a missing kernel; None if vLLM accepts the arguments, or if no GPU is simulated.
    """

    problem: str
    remedy: str
    culprits: tuple[str, ...]
    problem_on_gpu: str | None = None


def configure_engine(arguments: EngineArguments, context: StartupContext) -> ConfiguredEngine:
    """Apply all startup steps to an engine's arguments, and create vLLM's configuration.

    Raises:
        StartFailed: vLLM or a check refuses the arguments; with its message, and advice.
    """
    _import_parser_plugins(arguments.vllm_args)
    try:
        return _configure_and_check(arguments, context)
    except _REFUSAL_ERRORS as error:
        problem = error_message(error, _MAX_MESSAGE_LENGTH)
        culprits = _find_culprit_options(
            arguments, problem, partial(_find_config_problem, context=context)
        )
        raise start_failure(error, arguments, problem, culprits) from error


def find_config_refusals(
    arguments: EngineArguments,
    context: StartupContext,
    extra_check: Callable[[ConfiguredEngine], None] | None = None,
    gpu: Gpu | None = None,
) -> list[ConfigRefusal]:
    """Return all reasons why vLLM would refuse to start; a reason caused by the model comes last.

    The models in ``arguments`` must be directories. ``gpu`` is a GPU to simulate.
    """
    _import_parser_plugins(arguments.vllm_args)
    find_problem = partial(_find_config_problem, context=context, extra_check=extra_check)
    refusals = list[ConfigRefusal]()
    with simulate_gpu(gpu) if gpu else contextlib.nullcontext():
        while (problem := find_problem(arguments)) is not None:
            culprits = _find_culprit_options(arguments, problem, find_problem)
            on_gpu = None
            if gpu:
                with simulate_gpu(gpu, as_cuda=True):
                    on_gpu = find_problem(arguments)
            remedy = find_remedy(problem, arguments, culprits)
            remedy = remedy or explain_refusal(arguments, problem)
            refusals.append(ConfigRefusal(problem, remedy, culprits, on_gpu))
            if not culprits:
                break
            arguments = reset_options(arguments, culprits)
    return refusals


def reset_options(arguments: EngineArguments, names: Collection[str]) -> EngineArguments:
    """Return a copy of the arguments in which the named options have vLLM's defaults."""
    # Defaults of the engine's options, and of the options of vLLM's server.
    default_args = (
        import_from_vllm("AsyncEngineArgs")(model=arguments.vllm_args.model),
        import_from_vllm("FrontendArgs")(),
    )
    values = {
        dest: copy.deepcopy(getattr(defaults, dest))
        for name in names
        for defaults in default_args
        if hasattr(defaults, dest := name.lower())
    }
    reset = arguments.with_options(**values)
    rest = {name: value for name, value in arguments.operator_options.items() if name not in names}
    return dataclasses.replace(reset, operator_options=rest)


def _configure_and_check(arguments: EngineArguments, context: StartupContext) -> ConfiguredEngine:
    for step in STEPS:
        arguments = step(arguments, context)
    # Both calls may read the model's configuration; the core reads the weights later.
    engine_args = import_from_vllm("AsyncEngineArgs").from_cli_args(arguments.vllm_args)
    config = engine_args.create_engine_config(import_from_vllm("UsageContext").OPENAI_API_SERVER)
    for check in CORE_CHECKS:
        check(arguments, config)
    return ConfiguredEngine(arguments, config)


def _find_config_problem(
    arguments: EngineArguments,
    context: StartupContext,
    extra_check: Callable[[ConfiguredEngine], None] | None = None,
) -> str | None:
    """Return the message if vLLM or a check refuses the arguments; None if all accept them."""
    try:
        configured = _configure_and_check(arguments, context)
        if extra_check:
            extra_check(configured)
    except _REFUSAL_ERRORS as error:
        return error_message(error, _MAX_MESSAGE_LENGTH)
    return None


def _find_culprit_options(
    arguments: EngineArguments, problem: str, find_problem: Callable[[EngineArguments], str | None]
) -> tuple[str, ...]:
    """Return the options that cause a refusal, found by resetting options and checking again.

    Returns one option if its reset removes the problem, all options if only their reset does, or
    none if the model is the cause.
    """
    message = problem.lower()
    # Try the options in the message first: each attempt takes seconds if files are missing.
    options = sorted(
        {*arguments.operator_options} - _MODEL_OPTIONS,
        key=lambda name: (name.lower() not in message, name),
    )
    if not options or find_problem(reset_options(arguments, options)) == problem:
        return ()
    for name in options:
        if find_problem(reset_options(arguments, [name])) != problem:
            return (name,)
    return tuple(options)


def _import_parser_plugins(options: Namespace) -> None:
    """Import parser plugins; vLLM's launcher would do so, but the worker doesn't use it.

    Call this before a configuration is created, because that looks up parsers by name.
    """
    if options.tool_parser_plugin:
        import_from_vllm("ToolParserManager").import_tool_parser(options.tool_parser_plugin)
    if options.reasoning_parser_plugin:
        import_from_vllm("ReasoningParserManager").import_reasoning_parser(
            options.reasoning_parser_plugin
        )
