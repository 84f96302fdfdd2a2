"""A core: its requests, its processes, and what its start changes in this process."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import vllm.envs
from prometheus_client import REGISTRY, CollectorRegistry, Counter
from support.processes.background import wait_until

from worker.engine.run.healing import core as core_module
from worker.engine.run.healing.core import LESS_MEMORY, Core, CoreOutput
from worker.engine.run.healing.watchdog import Heartbeat
from worker.engine.seam.translation import is_out_of_memory
from worker.engine.start.cores import environ_may_change, take_metrics
from worker.engine.start.refusals import blamed
from worker.errors import EngineDead, MachineUnfit

Started = Callable[..., BaseProcess]
_context = multiprocessing.get_context("spawn")


@pytest.fixture
def started() -> Iterator[Started]:
    processes: list[BaseProcess] = []

    def start(target: Any, *args: Any) -> BaseProcess:
        process = _context.Process(target=target, args=args)
        process.start()
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.join()


def core(
    *ranks: BaseProcess, error: str | None = None, requests: Any = (), calls: Any = ()
) -> Core:
    manager = SimpleNamespace(processes=list(ranks))
    client: Any = SimpleNamespace(
        shutdown=lambda: None,
        engine_core=SimpleNamespace(
            resources=SimpleNamespace(engine_manager=manager),
            utility_results=dict(enumerate(calls)),
        ),
        output_processor=SimpleNamespace(
            request_states=dict(enumerate(requests)), has_unfinished_requests=lambda: bool(requests)
        ),
    )
    output: Any = SimpleNamespace(close=lambda: error)
    return Core(client, CollectorRegistry(), Heartbeat(), output)


def test_newcomers_are_those_without_output_that_came_in_time() -> None:
    def request(id_: str, age_s: float, *, new: bool) -> Any:
        stats = SimpleNamespace(arrival_time=time.time() - age_s)
        return SimpleNamespace(external_req_id=id_, is_prefilling=new, stats=stats)

    begun, new, late = (("begun", 9, False), ("new", 9, True), ("late", 1, True))
    found = core(
        requests=[request(id_, age, new=is_new) for id_, age, is_new in (begun, new, late)]
    )
    assert found.newcomers(time.monotonic() - 5) == {"new"}
    assert found.running == {"begun"}


async def test_calls_that_a_dead_core_has_left_fail_and_until_then_it_is_not_idle() -> None:
    left, answered = (asyncio.get_running_loop().create_future() for _ in range(2))
    answered.set_result(True)
    dead = core(calls=[left, answered])
    assert not dead.idle
    await dead.remove()
    with pytest.raises(EngineDead):
        await left
    assert (dead.idle, await answered) == (True, True)
    assert not core(requests=["running"]).idle


@pytest.mark.parametrize(
    ("number", "crashed"),
    [(signal.SIGKILL, False), (signal.SIGTERM, False), (signal.SIGSEGV, True)],
)
def test_a_core_that_is_ended_by_a_signal(
    number: signal.Signals, *, crashed: bool, started: Started
) -> None:
    rank = started(time.sleep, 60)
    ended = core(rank)
    os.kill(rank.pid or 0, number)
    assert ended.crashed() is crashed
    assert ended.close() == f"ended by {number.name}"


@pytest.mark.parametrize("status", [0, 1])
def test_a_core_that_has_ended_itself(status: int, started: Started) -> None:
    rank = started(os._exit, status)
    rank.join()
    ended = core(rank, error="ValueError: broken")
    assert ended.crashed() is bool(status)
    assert ended.close() == "ValueError: broken"


def test_an_error_of_the_gpus_memory_says_what_to_lower() -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert core(error=error).close() == f"{error} ({LESS_MEMORY})"


def test_a_stopped_core_is_seen_and_ended_and_builds_nothing(started: Started) -> None:
    rank = started(time.sleep, 60)
    stopped = core(rank)
    assert (stopped.stopped, stopped.builds) == (False, False)
    os.kill(rank.pid or 0, signal.SIGSTOP)
    wait_until(lambda: stopped.stopped)
    stopped.kill()
    assert rank.exitcode == -signal.SIGKILL


# What a core prints: passed on, and the last error in it


def printed_by(code: str, capfd: pytest.CaptureFixture[str]) -> tuple[str, str | None]:
    """Run code in a process that is captured; return what was passed on, and the error."""
    output = CoreOutput()
    with output.captured():
        child = subprocess.Popen([sys.executable, "-c", code])
    child.wait()
    error = output.close()
    return "".join(capfd.readouterr()), error


def test_output_is_passed_on_and_its_last_error_kept(capfd: pytest.CaptureFixture[str]) -> None:
    code = "import os; print('one'); print('x' * 100_000); os.write(2, b'no end')"
    assert printed_by(code, capfd) == (f"one\n{'x' * 100_000}\nno end", None)
    code = "import sys; print('KeyError: 1', file=sys.stderr); raise ValueError('two\\nlines')"
    passed_on, error = printed_by(code, capfd)
    assert ("Traceback" in passed_on, error) == (True, "ValueError: two")


def test_a_reader_ends_although_another_process_has_its_pipes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_module, "DRAIN_S", 0.1)
    note, sleeper = tmp_path / "pid", [sys.executable, "-c", "import time; time.sleep(600)"]
    begin = f"import subprocess; pid = subprocess.Popen({sleeper}).pid; "
    assert printed_by(f"{begin}open({str(note)!r}, 'w').write(str(pid))", capfd) == ("", None)
    sleeping = psutil.Process(int(note.read_text()))
    assert sleeping.status() != psutil.STATUS_ZOMBIE
    sleeping.kill()


def test_the_output_of_this_process_is_its_own_again(capfd: pytest.CaptureFixture[str]) -> None:
    output = CoreOutput()
    with output.captured():
        os.write(1, b"captured\n")
    os.write(1, b"own\n")
    assert output.close() is None
    assert sorted(capfd.readouterr().out.splitlines()) == ["captured", "own"]


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", True),
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94", False),
    ],
)
def test_an_error_of_a_part_is_about_memory_or_the_machines_fault(
    error: str, *, is_full: bool
) -> None:
    assert is_out_of_memory(error) is is_full
    assert isinstance(blamed(RuntimeError(error), error), MachineUnfit) is not is_full


# What a start changes in this process: vLLM's variables, and its metrics


NAME = "VLLM_CPU_KVCACHE_SPACE"


@pytest.fixture(autouse=True)
def _reading() -> Iterator[None]:
    yield
    vllm.envs.disable_envs_cache()


def test_vllm_reads_its_variables_while_a_core_starts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with environ_may_change():
        monkeypatch.setenv(NAME, "3")
        assert vllm.envs.VLLM_CPU_KVCACHE_SPACE == 3
    monkeypatch.setenv(NAME, "4")
    assert vllm.envs.VLLM_CPU_KVCACHE_SPACE == 3
    with environ_may_change():
        assert vllm.envs.VLLM_CPU_KVCACHE_SPACE == 4


def test_vllms_metrics_of_an_engine_have_a_registry_of_their_own() -> None:
    take_metrics()  # metrics that importing vLLM may have registered
    vllms, other = Counter("vllm:asked", "Requests."), Counter("vllm_test", "Another's.")
    vllms.inc()
    try:
        assert REGISTRY.get_sample_value("vllm:asked_total") == 1
        apart = take_metrics()
        assert REGISTRY.get_sample_value("vllm:asked_total") is None
        assert REGISTRY.get_sample_value("vllm_test_total") == 0
        assert [family.name for family in apart.collect()] == ["vllm:asked"]
    finally:
        REGISTRY.unregister(other)
    assert list(take_metrics().collect()) == []
