"""Starts cores: the first ones by a fork, before any thread exists; later ones from nothing."""

import contextlib
import importlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from prometheus_client import REGISTRY, CollectorRegistry

from worker.children import forks_end_with_this
from worker.engine.arguments import EngineArguments
from worker.engine.run.healing.core import Core, CoreOutput
from worker.engine.run.healing.watchdog import Heartbeat
from worker.engine.seam.locations import LOCATIONS, find
from worker.engine.seam.translation import START_ERRORS
from worker.process.garbage import collect_in_forks
from worker.settings.environment import is_set, overwrite

# Held while a core starts: the next start would take away the metrics that vLLM registers.
_starting = threading.Lock()

# The prefix of vLLM's metrics.
METRICS = "vllm:"


def take_metrics() -> CollectorRegistry:
    """Move the metrics that vLLM has just registered into a registry of their own.

    The next engine of this process would unregister them: vLLM expects to be the only one.
    """
    registry = CollectorRegistry()
    # There is no public way to list collectors; vLLM looks here, too.
    for collector in list(REGISTRY._collector_to_names):
        if getattr(collector, "_name", "").startswith(METRICS):
            REGISTRY.unregister(collector)
            registry.register(collector)
    return registry


@contextlib.contextmanager
def environ_may_change() -> Iterator[None]:
    """Let vLLM read variables from the environment in this block, and remember them after it.

    It reads some of them for every token, unless it remembers them, as it does in its core.
    """
    find("disable_envs_cache")()
    yield
    find("enable_envs_cache")()


def fork(arguments: EngineArguments, config: Any, also_import: Sequence[str] | None) -> Core:
    """Start an engine's core by a fork of this process, while it has one thread.

    ``also_import`` are modules to import in a thread once the core is forked; None if another core
    is to be forked after this one.
    """
    if find("current_platform").is_cpu():
        # vLLM's CPU backend has just chosen to spawn, which means to import vLLM once more.
        overwrite("VLLM_WORKER_MULTIPROC_METHOD", "fork")
        # The core inherits the number of threads. OpenMP's threads spin while they wait for each
        # other: with one for each CPU, anything else that runs (this process, a client) makes them
        # a hundred times slower.
        if not is_set("OMP_NUM_THREADS"):
            torch.set_num_threads(max(1, torch.get_num_threads() - 1))
    # With data parallelism several cores are forked, and no thread may begin between them.
    if also_import is not None and config.parallel_config.data_parallel_size == 1:
        _import_while_core_starts([*LOCATIONS["build_app"][:1], *also_import])
    collect_in_forks()
    return _start(arguments, config)


def spawn(arguments: EngineArguments, config: Any) -> Core:
    """Start a new core for an engine that died, in a process that has threads by now."""
    # A fork would copy locks that other threads hold. A spawned core gets the number of threads,
    # which a forked one inherits, from the environment.
    overwrite("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    if find("current_platform").is_cpu() and not is_set("OMP_NUM_THREADS"):
        overwrite("OMP_NUM_THREADS", str(torch.get_num_threads()))
    return _start(arguments, config)


def _start(arguments: EngineArguments, config: Any) -> Core:
    """Start a core; one of ``START_ERRORS`` is raised if it does not start."""
    heartbeat, output = Heartbeat(), CoreOutput()
    with _starting:
        try:
            with output.captured(), forks_end_with_this():
                client = find("AsyncLLM").from_vllm_config(
                    config,
                    enable_log_requests=arguments.vllm.enable_log_requests,
                    stat_loggers=[lambda *_: heartbeat],
                )
        except START_ERRORS as error:
            # vLLM itself says only that the core did not start.
            if reason := output.close():
                raise RuntimeError(reason) from error
            raise
        return Core(client, take_metrics(), heartbeat, output)


def _import_while_core_starts(modules: Sequence[str]) -> None:
    """Import modules in a thread that begins right after the next fork.

    This process would only wait for the core, which takes seconds to start. A thread before the
    fork would be dangerous: a lock that it holds then stays locked in the child.
    """
    pending, parent = list(modules), os.getpid()

    def begin() -> None:
        # The hook can't be removed: it also runs at later forks, and at those of the child.
        if pending and os.getpid() == parent:
            names, pending[:] = tuple(pending), []
            threading.Thread(target=_import_all, args=(names,), name="import").start()

    os.register_at_fork(after_in_parent=begin)


def _import_all(modules: Sequence[str]) -> None:
    for module in modules:
        # The import that needs the module will raise the error again.
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
