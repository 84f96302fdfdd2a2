"""Makes vLLM's configuration of an engine, and finds which settings it is refused for."""

import contextlib
import copy
import dataclasses
from argparse import Namespace
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from worker.engine.arguments import EngineArguments
from worker.engine.machine import Gpu, as_on
from worker.engine.model_config import MALFORMED, create_model_config
from worker.engine.options.automatic import fitting_tensor_parallel_size, with_renderer_workers
from worker.engine.seam.locations import find
from worker.engine.start import foresight
from worker.engine.start.load_strategy import with_load_strategy
from worker.engine.start.parsers import with_parsers
from worker.engine.start.refusals import failure, remedy, words
from worker.errors import StartFailed
from worker.settings.environment import Default

# Options that say which model it is: without them it would be another one.
_MODEL = frozenset({"MODEL", "REVISION", "HF_CONFIG_PATH"})
# Characters of a refusal: some have advice that goes on and on, or list all that vLLM has.
_MOST = 300
_REFUSALS = (*MALFORMED, StartFailed)


class Configured(NamedTuple):
    """An engine's final arguments, and the configuration that vLLM made of them."""

    arguments: EngineArguments
    config: Any


Check = Callable[[Configured], None]


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

    @property
    def unlike(self) -> bool:
        """Whether a GPU may not share it."""
        return self.on_gpu != self.problem


def configure(arguments: EngineArguments) -> Configured:
    """Change an engine's arguments by what its model's files say, and make the configuration.

    Raises:
        StartFailed: with vLLM's words, and what to set instead.
    """
    _import_plugins(arguments.vllm)
    try:
        return _configured(arguments)
    except _REFUSALS as error:
        refusal = _refusal(arguments, words(error, _MOST))
        raise failure(error, arguments, refusal.problem, refusal.remedy) from error


def refusals(
    arguments: EngineArguments, also: Check | None = None, gpu: Gpu | None = None
) -> list[Refusal]:
    """Return everything that a start would be refused for, one after the other.

    Args:
        arguments: of an engine, with directories as models.
        also: a further check of what they make.
        gpu: what the engine is to run on, if it is not here.

    What is about the model and no setting is the last.
    """
    _import_plugins(arguments.vllm)
    found = list[Refusal]()
    with as_on(gpu) if gpu else contextlib.nullcontext():
        while (problem := _problem(arguments, also)) is not None:
            refusal = _refusal(arguments, problem, also)
            if gpu:
                with as_on(gpu, cuda=True):
                    refusal = refusal._replace(on_gpu=_problem(arguments, also))
            found.append(refusal)
            if not refusal.unset:
                break
            arguments = without(arguments, refusal.unset)
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
    return dataclasses.replace(changed, given=arguments.given - {*names})


def with_fitting_tensor_parallel_size(arguments: EngineArguments) -> EngineArguments:
    """Make a tensor parallel size that the worker chose fit the model's attention heads."""
    name = "TENSOR_PARALLEL_SIZE"
    if all(default.name != name for default in arguments.defaults):
        return arguments
    gpus: int = arguments.vllm.tensor_parallel_size
    architecture = create_model_config(arguments).model_arch_config
    size = fitting_tensor_parallel_size(gpus, architecture.total_num_attention_heads)
    if size == gpus:
        return arguments
    reason = f"as many of {gpus} GPUs as can share its attention heads"
    return arguments.with_default(Default(name, str(size), reason), size)


def _configured(arguments: EngineArguments) -> Configured:
    arguments = with_parsers(with_load_strategy(arguments))
    final = with_fitting_tensor_parallel_size(arguments)
    # Reads the model's configuration; the core will read the weights.
    engine_args = find("AsyncEngineArgs").from_cli_args(final.vllm)
    config = engine_args.create_engine_config(find("UsageContext").OPENAI_API_SERVER)
    foresight.check(final, config)
    return Configured(with_renderer_workers(final, config.model_config), config)


def _problem(arguments: EngineArguments, also: Check | None) -> str | None:
    """Return why vLLM refuses arguments, in its words; None if it does not."""
    try:
        configured = _configured(arguments)
        if also:
            also(configured)
    except _REFUSALS as error:
        return words(error, _MOST)
    return None


def _refusal(arguments: EngineArguments, problem: str, also: Check | None = None) -> Refusal:
    unset = _blamed(arguments, problem, also)
    return Refusal(problem, remedy(problem, arguments, unset), unset)


def _blamed(arguments: EngineArguments, problem: str, also: Check | None) -> tuple[str, ...]:
    """Return the options for which vLLM refuses the rest: it is asked again without them."""
    said = problem.lower()
    # Those that it names first: a configuration takes it seconds if files are missing.
    options = sorted(arguments.given - _MODEL, key=lambda name: (name.lower() not in said, name))
    if not options or _problem(without(arguments, options), also) == problem:
        return ()
    for name in options:
        if _problem(without(arguments, [name]), also) != problem:
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
