"""Makes vLLM's configuration of an engine, and finds which settings it is refused for."""

import contextlib
import copy
import dataclasses
from argparse import Namespace
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

from worker.engine.arguments import EngineArguments, StartContext
from worker.engine.machine import Gpu, as_on
from worker.engine.model_config import MALFORMED
from worker.engine.seam.locations import find
from worker.engine.start.refusals import failure, remedy, words
from worker.engine.start.tables import FORESIGHT, STEPS
from worker.errors import StartFailed

# Options that say which model it is: without them it would be another one.
_MODEL = frozenset({"MODEL", "REVISION", "HF_CONFIG_PATH"})
# Characters of a refusal: some have advice that goes on and on, or list all that vLLM has.
_MOST = 300
_REFUSALS = (*MALFORMED, StartFailed)


class Configured(NamedTuple):
    """An engine's final arguments, and the configuration that vLLM made of them."""

    arguments: EngineArguments
    config: Any


class Refusal(NamedTuple):
    """Why a start would be refused, and for which settings.

    Attributes:
        problem: in vLLM's words.
        remedy: what to set instead; empty if it isn't known.
        unset: options without any one of which it would not; empty if it is about the model.
        on_gpu: what vLLM says where it takes its platform for that of a GPU that is not here, if it
            was asked about one: the same, or that it lacks a kernel, or nothing.
    """

    problem: str
    remedy: str
    unset: tuple[str, ...]
    on_gpu: str | None = None


def configure(arguments: EngineArguments, context: StartContext) -> Configured:
    """Take an engine's arguments through all steps, and make vLLM's configuration of them.

    Raises:
        StartFailed: with vLLM's words, and what to set instead.
    """
    _import_plugins(arguments.vllm)
    try:
        return _configured(arguments, context)
    except _REFUSALS as error:
        problem = words(error, _MOST)
        unset = _blamed(arguments, problem, partial(_problem, context=context))
        raise failure(error, arguments, problem, unset) from error


def refusals(
    arguments: EngineArguments,
    context: StartContext,
    also: Callable[[Configured], None] | None = None,
    gpu: Gpu | None = None,
) -> list[Refusal]:
    """Return everything that a start would be refused for, one after the other.

    The arguments have directories as models, ``also`` is a further check, and ``gpu`` what the
    engine is to run on, if it is not here. What is about the model and no setting is the last.
    """
    _import_plugins(arguments.vllm)
    ask = partial(_problem, context=context, also=also)
    found = list[Refusal]()
    with as_on(gpu) if gpu else contextlib.nullcontext():
        while (problem := ask(arguments)) is not None:
            unset = _blamed(arguments, problem, ask)
            on_gpu = None
            if gpu:
                with as_on(gpu, cuda=True):
                    on_gpu = ask(arguments)
            found.append(Refusal(problem, remedy(problem, arguments, unset), unset, on_gpu))
            if not unset:
                break
            arguments = without(arguments, unset)
    return found


def without(arguments: EngineArguments, names: Collection[str]) -> EngineArguments:
    """Return a copy in which options have vLLM's own defaults."""
    # Options of the engine, and those of vLLM's server.
    kinds = find("AsyncEngineArgs")(model=arguments.vllm.model), find("FrontendArgs")()
    values = {
        dest: copy.deepcopy(getattr(unset, dest))
        for name in names
        for unset in kinds
        if hasattr(unset, dest := name.lower())
    }
    changed = arguments.with_options(**values)
    given = {name: value for name, value in arguments.given.items() if name not in names}
    return dataclasses.replace(changed, given=given)


def _configured(arguments: EngineArguments, context: StartContext) -> Configured:
    for step in STEPS:
        arguments = step(arguments, context)
    # Reads the model's configuration; the core will read the weights.
    engine_args = find("AsyncEngineArgs").from_cli_args(arguments.vllm)
    config = engine_args.create_engine_config(find("UsageContext").OPENAI_API_SERVER)
    for check in FORESIGHT:
        check(arguments, config)
    return Configured(arguments, config)


def _problem(
    arguments: EngineArguments,
    context: StartContext,
    also: Callable[[Configured], None] | None = None,
) -> str | None:
    """Return why vLLM refuses arguments, in its words; None if it does not."""
    try:
        configured = _configured(arguments, context)
        if also:
            also(configured)
    except _REFUSALS as error:
        return words(error, _MOST)
    return None


def _blamed(
    arguments: EngineArguments, problem: str, ask: Callable[[EngineArguments], str | None]
) -> tuple[str, ...]:
    """Return the options for which vLLM refuses the rest: it is asked again without them."""
    said = problem.lower()
    # Those that it names first: a configuration takes it seconds if files are missing.
    options = sorted({*arguments.given} - _MODEL, key=lambda name: (name.lower() not in said, name))
    if not options or ask(without(arguments, options)) == problem:
        return ()
    for name in options:
        if ask(without(arguments, [name])) != problem:
            return (name,)
    return tuple(options)


def _import_plugins(options: Namespace) -> None:
    """Load parser plugins, as vLLM's launcher does, which the worker doesn't use.

    Before a configuration is made: it looks parsers up by name.
    """
    if options.tool_parser_plugin:
        find("ToolParserManager").import_tool_parser(options.tool_parser_plugin)
    if options.reasoning_parser_plugin:
        find("ReasoningParserManager").import_reasoning_parser(options.reasoning_parser_plugin)
