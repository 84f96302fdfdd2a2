"""Tables of the startup: the steps that change arguments, the checks, and the fallbacks.

``worker.engine.options`` creates an engine's arguments from the settings. After that, only the
functions in ``STEPS``, ``FALLBACKS`` and ``RESTART_STEPS`` change them, and each returns a changed
copy.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from worker.engine.arguments import EngineArguments
from worker.engine.machine import Machine
from worker.engine.options import combinations
from worker.engine.run.requests import media
from worker.engine.start import Start, checks, parsers, steps
from worker.settings.mistakes import Mistake

# Functions that change an engine's arguments before vLLM creates its configuration, in this order.
STEPS: tuple[Callable[[EngineArguments, Start], EngineArguments], ...] = (
    # vLLM loads the directories that the store found and makes no requests to the hub.
    steps.with_artifact_directories,
    # The worker, not vLLM, fetches and checks callers' files.
    media.disable_media_fetching,
    # FAST_LOAD: use a loader that reads weights onto GPUs faster than vLLM's own loader.
    steps.with_fast_loader,
    # On a network disk, prefetch the weights, which vLLM would memory-map slowly.
    steps.with_prefetch_strategy,
    # "auto" is replaced by the parsers that suit the model's output.
    parsers.with_parsers,
    # LoRA is enabled if a worker only trains, since it checks adapters as a serving engine does.
    steps.with_lora_enabled,
    # The tensor parallel size must divide the model's number of attention heads.
    steps.with_tensor_parallel_size,
    # Long texts must not occupy all threads that tokenize.
    steps.with_renderer_workers,
)

# Functions that change the arguments of a dead core before a new core replaces it.
RESTART_STEPS: tuple[Callable[[EngineArguments], EngineArguments], ...] = (
    steps.with_same_context_length,
)

# Checks that run before anything is loaded; all mistakes are reported together. Other modules check
# names (``worker.settings.names``) and convert single values (``worker.settings``,
# ``worker.engine.variables`` and ``worker.engine.options.option``).
OPTION_CHECKS: tuple[Callable[[EngineArguments, Machine], Iterator[Mistake]], ...] = (
    combinations.check_parsers,
    combinations.check_adapter_options,
    combinations.check_max_model_len_not_zero,
    combinations.check_directories_and_names,
    combinations.check_chat_template,
    combinations.run_vllm_checks,
    combinations.check_gpu_count,
)

# Checks that predict, from vLLM's configuration, why a core or a first request would fail. They run
# before the core is started. The first refusal is raised, with vLLM's message if there is one.
CORE_CHECKS: tuple[Callable[[EngineArguments], None], ...] = (
    checks.check_config_on_any_machine,
    checks.check_config_on_cpu,
    checks.check_tokenizer,
    checks.check_processor,
    checks.check_sampling_defaults,
)


# Fallbacks for a second core if the first core didn't start, with their log messages. A function
# receives the first core's arguments and the error of the failure. It returns the arguments for the
# second core; None if the fallback does not apply.
FALLBACKS: Mapping[Callable[[EngineArguments, Exception], EngineArguments | None], str] = {
    steps.without_fast_loader: (
        "it did not start with the loader that was chosen, so vLLM's own reads the weights"
    ),
    steps.with_less_memory: "the memory was full, so it is started once more with less",
}


def find_option_mistakes(arguments: EngineArguments, machine: Machine) -> Iterator[Mistake]:
    """Run ``OPTION_CHECKS``; mistakes name options, without the prefix of the engine's settings."""
    for check in OPTION_CHECKS:
        yield from check(arguments, machine)


def choose_fallback_arguments(
    arguments: EngineArguments, error: Exception
) -> tuple[EngineArguments, str] | None:
    """Return the arguments for a second core and a log message; None if no fallback applies.

    ``arguments`` are the first core's. If several fallbacks apply, all change the arguments, and
    the message is the last one's.
    """
    fallback, config = None, arguments.config
    for change, description in FALLBACKS.items():
        # A change removes the configuration, which the next fallback reads.
        if changed := change(replace(arguments, config=config), error):
            arguments, fallback = changed, (changed, description)
    return fallback
