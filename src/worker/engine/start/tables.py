"""A start as three tables: the steps that change arguments, the checks, and the retreats.

``worker.engine.options`` makes an engine's arguments of the settings. From then on nothing but the
rows of ``STEPS``, ``RETREATS`` and ``RESTART`` changes them, and each returns a changed copy.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from worker.engine.arguments import EngineArguments, StartContext
from worker.engine.machine import Machine
from worker.engine.options import combinations
from worker.engine.run.requests import media
from worker.engine.start import fitting, foresight, loading, parsers, steps
from worker.settings.mistakes import Mistake

# What changes an engine's arguments before vLLM makes its configuration of them, in this order.
STEPS: tuple[Callable[[EngineArguments, StartContext], EngineArguments], ...] = (
    # vLLM loads the directories that the store has found, and need not ask the hub.
    steps.with_directories,
    # The worker fetches and checks the files that callers name, never vLLM.
    media.without_fetcher,
    # FAST_LOAD: a loader reads weights onto GPUs faster than vLLM's own.
    loading.with_fast_loader,
    # vLLM maps files, which is slow on a network disk.
    loading.with_load_strategy,
    # "auto" becomes the parsers that read what the model writes.
    parsers.with_parsers,
    # A worker that only trains checks adapters as an engine that serves them would.
    steps.with_adapters,
    # As many GPUs as the machine has may not divide the model's attention heads.
    steps.with_fitting_tensor_parallel_size,
    # Long texts must not take all threads that tokenize.
    steps.with_renderer_workers,
)

# What changes before a new core takes the place of a dead one.
RESTART: tuple[Callable[[EngineArguments, Any], EngineArguments], ...] = (steps.with_same_context,)

# What is checked before anything is loaded; all mistakes are reported together. Names are checked
# by ``worker.settings.names``, single values where they are converted: ``worker.settings``,
# ``worker.engine.variables`` and ``worker.engine.options.option``.
CHECKS: tuple[Callable[[EngineArguments, Machine], Iterator[Mistake]], ...] = (
    combinations.parsers,
    combinations.adapters,
    combinations.context,
    combinations.directories,
    combinations.chat_template,
    combinations.refused_by_vllm,
    combinations.too_many_gpus,
)

# What a core would refuse, checked before there is one by the arguments and vLLM's configuration;
# the first refusal is raised, in vLLM's words where it has some.
FORESIGHT: tuple[Callable[[EngineArguments, Any], None], ...] = (
    foresight.check_anywhere,
    foresight.check_on_cpu,
)


# What a second core does without if the first one did not start, and the sentence for the log. By
# the first one's arguments, vLLM's configuration and the reason of the failure a function returns
# the arguments of the second one; None if there is nothing to do without.
RETREATS: Mapping[Callable[[EngineArguments, Any, str], EngineArguments | None], str] = {
    loading.without_fast_loader: (
        "it did not start with the loader that was chosen, so vLLM's own reads the weights"
    ),
    fitting.with_less: "the memory was full, so it is started once more with less",
}


def mistakes_in(arguments: EngineArguments, machine: Machine) -> Iterator[Mistake]:
    """Yield what the checks find, with the names of settings without the engine's prefix."""
    for check in CHECKS:
        yield from check(arguments, machine)


def second_try(
    arguments: EngineArguments, config: Any, reason: str
) -> tuple[EngineArguments, str] | None:
    """Return the arguments for a second core, and what it does without; None for no second one.

    The arguments and the configuration are those of the first one, which failed for the reason.
    """
    second = None
    for change, doing in RETREATS.items():
        if changed := change(arguments, config, reason):
            arguments, second = changed, (changed, doing)
    return second
