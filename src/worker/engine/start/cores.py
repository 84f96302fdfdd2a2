"""Starts engine cores: forks the first cores before any thread exists, and spawns later ones."""

import contextlib
import importlib
import os
import threading
from collections.abc import Iterator, Sequence

import torch
from prometheus_client import REGISTRY, CollectorRegistry
from vllm.v1.engine.exceptions import EngineDeadError

from worker.children import end_forks_with_parent
from worker.engine.arguments import EngineArguments
from worker.engine.run.core import Core, CoreFailed, CoreOutput, Heartbeat
from worker.engine.seam.locations import LOCATIONS, import_from_vllm
from worker.engine.seam.patches import LORA_INFO
from worker.engine.seam.protocols import Client
from worker.errors import EngineDead, MachineUnfit
from worker.process.lifetime import enable_gc_in_forks
from worker.process.memory import count_oom_kills
from worker.settings.environment import is_variable_set, set_variable

# Only one core starts at a time. Otherwise the metrics that vLLM registers for two cores would be
# moved into the same registry.
_start_lock = threading.Lock()

METRICS_PREFIX = "vllm:"
# Every worker with as much memory would fail, as with Python's MemoryError. If anything else than
# the kernel kills a core, this says nothing about other workers.
OOM_KILLED = "MemoryError: the kernel killed the core because the machine's memory was full"


def remove_unlimited_metrics(client: Client) -> None:
    """Unregister the metrics whose labels are lists of adapters, and let vLLM not record them."""
    for stat_logger in client.logger_manager.stat_loggers:
        if getattr(stat_logger, LORA_INFO.name, None) is not None:
            REGISTRY.unregister(LORA_INFO.replace(stat_logger, None))


def move_vllm_metrics() -> CollectorRegistry:
    """Move the metrics that vLLM has just registered into a separate registry.

    vLLM expects one engine per process, so the next engine would unregister them.
    """
    registry = CollectorRegistry()
    # There is no public way to list collectors; vLLM also uses this attribute.
    for collector in list(REGISTRY._collector_to_names):
        if getattr(collector, "_name", "").startswith(METRICS_PREFIX):
            REGISTRY.unregister(collector)
            registry.register(collector)
    return registry


@contextlib.contextmanager
def allow_environ_changes() -> Iterator[None]:
    """Let vLLM read variables from the environment during the block, and cache them afterwards.

    Without the cache, vLLM reads some variables for every token.
    """
    import_from_vllm("disable_envs_cache")()
    yield
    import_from_vllm("enable_envs_cache")()


def fork_core(arguments: EngineArguments, modules: Sequence[str] | None) -> Core:
    """Start an engine's core by forking this process, which must have only one thread.

    This process then imports ``modules`` in a thread; None if another fork will follow.
    """
    if import_from_vllm("current_platform").is_cpu():
        # vLLM's CPU backend has just selected "spawn", whose child would import vLLM again.
        set_variable("VLLM_WORKER_MULTIPROC_METHOD", "fork")
        # The core inherits the number of threads. OpenMP's threads spin while they wait for each
        # other. With one thread per CPU, any other running code (this process, a client) slows them
        # down a hundredfold.
        if not is_variable_set("OMP_NUM_THREADS"):
            torch.set_num_threads(max(1, torch.get_num_threads() - 1))
    # With data parallelism, several cores are forked, and no thread may start between the forks.
    if modules is not None and arguments.config.parallel_config.data_parallel_size == 1:
        _import_while_core_starts([*LOCATIONS["build_app"][:1], *modules])
    enable_gc_in_forks()
    return _start_core(arguments)


def spawn_core(arguments: EngineArguments) -> Core:
    """Start a core by spawning a process, after a core died or the first one didn't start."""
    # A fork would copy locks that other threads hold. A spawned core reads the number of threads
    # from the environment, whereas a forked core inherits it.
    set_variable("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    if import_from_vllm("current_platform").is_cpu() and not is_variable_set("OMP_NUM_THREADS"):
        set_variable("OMP_NUM_THREADS", str(torch.get_num_threads()))
    return _start_core(arguments)


def _start_core(arguments: EngineArguments) -> Core:
    """Start a core; raise the last error in its output, or vLLM's own, if it does not start."""
    heartbeat, output, oom_kills = Heartbeat(), CoreOutput(), count_oom_kills()
    with _start_lock:
        try:
            with output.capture(), end_forks_with_parent():
                client = import_from_vllm("AsyncLLM").from_vllm_config(
                    arguments.config,
                    enable_log_requests=arguments.vllm_args.enable_log_requests,
                    stat_loggers=[lambda *_: heartbeat],
                )
        # Not only the core fails here: vLLM's client loads the tokenizer, by any code.
        except Exception as error:
            failure = output.close_and_get_error()
            if count_oom_kills() != oom_kills:
                raise CoreFailed(OOM_KILLED) from None
            # vLLM's own error only states that the core did not start.
            if failure:
                raise failure from error
            raise
        remove_unlimited_metrics(client)
        return Core(client, move_vllm_metrics(), heartbeat, output)


@contextlib.contextmanager
def explain_death(core: Core) -> Iterator[None]:
    """Convert any error of the block into the reason of the engine's death, if it has died.

    Raises:
        CoreFailed: The block has killed the core; with the last error in its output.
        MachineUnfit: The core was ended from outside.
        Exception: The block's own error, if the core neither exited nor reported its death.
    """
    oom_kills = count_oom_kills()
    try:
        yield
    # A dying core fails whatever waits for it, each in another way.
    except Exception as error:
        if not core.client.errored:
            raise
        has_crashed, has_exited = core.has_crashed(), core.has_exited
        reason = core.stop_and_get_reason()
        cause: BaseException = error
        while cause.__cause__:
            cause = cause.__cause__
        # A core reports its death before it exits.
        if not has_exited and not isinstance(cause, EngineDead | EngineDeadError):
            raise cause from None
        if count_oom_kills() != oom_kills:
            raise CoreFailed(OOM_KILLED) from error
        failure = CoreFailed if has_crashed else MachineUnfit
        raise failure(reason) from error


def _import_while_core_starts(modules: Sequence[str]) -> None:
    """Import modules in a thread that starts right after the next fork.

    Otherwise this process would only wait for the core, which takes seconds to start. A thread
    before the fork would be dangerous: a lock that it holds would stay locked in the child.
    """
    pending, parent = list(modules), os.getpid()

    def start_import_thread() -> None:
        # The hook can't be removed: it also runs after later forks, including forks of the child.
        if pending and os.getpid() == parent:
            names, pending[:] = tuple(pending), []
            threading.Thread(target=_import_modules, args=(names,), name="import").start()

    os.register_at_fork(after_in_parent=start_import_thread)


def _import_modules(modules: Sequence[str]) -> None:
    for module in modules:
        # The code that needs the module will raise the error again when it imports it.
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
