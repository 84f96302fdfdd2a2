"""Creates vLLM's configuration of an engine, and finds the settings that vLLM refuses."""

import contextlib
import copy
from collections.abc import Callable, Collection
from dataclasses import replace

from worker.engine.arguments import EngineArguments
from worker.engine.machine import simulate_gpu
from worker.engine.seam.locations import import_from_vllm
from worker.engine.start import Start
from worker.engine.start.refusals import error_message, explain_failure
from worker.engine.start.tables import CORE_CHECKS, STEPS
from worker.errors import MachineUnfit

# Options that select the model. They are not reset to find the cause of a refusal, since that would
# select another model.
_MODEL_OPTIONS = frozenset({"MODEL", "REVISION", "HF_CONFIG_PATH"})
# Maximum length of a message in characters: some messages contain long advice or list everything
# that vLLM supports.
_MAX_MESSAGE_LENGTH = 400


# A check in addition to ``CORE_CHECKS``.
Check = Callable[[EngineArguments], None]


def configure_engine(
    arguments: EngineArguments, start: Start, check: Check | None = None
) -> EngineArguments:
    """Apply all steps to an engine's arguments, create vLLM's configuration, and run all checks.

    The start (``launch``) and the doctor (``doctor.engines``) call it. The doctor adds a check, the
    ``rehearsal`` of what a core does next.

    Returns the final arguments with their configuration. The models must be on the disk. A
    ``StartFailed`` has vLLM's or a check's message, the options that cause the refusal (none if the
    model does), and advice.
    """
    # vLLM's launcher would import plugins, but the worker doesn't use it. Creating a configuration
    # looks up parsers by name.
    options = arguments.vllm_args
    if plugin := options.tool_parser_plugin:
        import_from_vllm("ToolParserManager").import_tool_parser(plugin)
    if plugin := options.reasoning_parser_plugin:
        import_from_vllm("ReasoningParserManager").import_reasoning_parser(plugin)
    configured = arguments
    try:
        with _simulate_machine(start):
            configured = _create_config(arguments, start)
            _run_checks(configured, check)
    except MachineUnfit:
        raise
    # vLLM, transformers and the code of models raise any exception for an unexpected value.
    except Exception as error:
        problem = error_message(error, _MAX_MESSAGE_LENGTH)
        culprits = _find_culprit_options(arguments, problem, start, check)
        raise explain_failure(error, configured, culprits, problem, start.simulated_gpu) from error
    return configured


def find_problem(
    arguments: EngineArguments,
    start: Start,
    check: Check | None = None,
    *,
    as_cuda: bool = False,
) -> str | None:
    """Return the message if vLLM or a check refuses the arguments, or None.

    With ``as_cuda``, a simulated GPU has the CUDA platform, whose kernels this machine may lack.
    """
    try:
        with _simulate_machine(start, as_cuda=as_cuda):
            _run_checks(_create_config(arguments, start), check)
    except Exception as error:  # noqa: BLE001 - as in ``configure_engine``
        return error_message(error, _MAX_MESSAGE_LENGTH)
    return None


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
    return replace(reset, operator_options=rest)


def _create_config(arguments: EngineArguments, start: Start) -> EngineArguments:
    for step in STEPS:
        arguments = step(arguments, start)
    # Both calls may read the model's configuration; the core reads the weights later.
    engine_args = import_from_vllm("AsyncEngineArgs").from_cli_args(arguments.vllm_args)
    usage = import_from_vllm("UsageContext").OPENAI_API_SERVER
    return replace(arguments, config=engine_args.create_engine_config(usage))


def _run_checks(configured: EngineArguments, check: Check | None) -> None:
    for run_check in (*CORE_CHECKS, *([check] if check else ())):
        run_check(configured)


def _simulate_machine(
    start: Start, *, as_cuda: bool = False
) -> contextlib.AbstractContextManager[None]:
    gpu = start.simulated_gpu
    return simulate_gpu(gpu, as_cuda=as_cuda) if gpu else contextlib.nullcontext()


def _find_culprit_options(
    arguments: EngineArguments, problem: str, start: Start, check: Check | None
) -> tuple[str, ...]:
    """Return the options that cause a refusal, found by resetting options and trying again.

    Returns one option if its reset removes the problem, all options if only their reset does, or
    none if the model is the cause.
    """

    def causes_problem(*names: str) -> bool:
        return find_problem(reset_options(arguments, names), start, check) != problem

    message = problem.lower()
    # Try the options in the message first: each attempt takes seconds if files are missing.
    options = sorted(
        {*arguments.operator_options} - _MODEL_OPTIONS,
        key=lambda name: (name.lower() not in message, name),
    )
    if not options or not causes_problem(*options):
        return ()
    return next(((name,) for name in options if causes_problem(name)), tuple(options))
