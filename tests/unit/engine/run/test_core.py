"""A core: its requests, its processes, and the changes that its startup makes in this process."""

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

from worker.engine.run import core as core_module
from worker.engine.run.core import OUT_OF_MEMORY_HINT, Core, CoreOutput, Heartbeat
from worker.engine.start.cores import allow_environ_changes, move_vllm_metrics
from worker.errors import EngineDead

StartProcess = Callable[..., BaseProcess]
_context = multiprocessing.get_context("spawn")


@pytest.fixture
def start_process() -> Iterator[StartProcess]:
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
    output: Any = SimpleNamespace(close_and_get_error=lambda: error)
    return Core(client, CollectorRegistry(), Heartbeat(), output)


def test_new_requests_are_those_without_output_that_arrived_in_time() -> None:
    def request(id_: str, age_s: float, *, new: bool) -> Any:
        stats = SimpleNamespace(arrival_time=time.time() - age_s)
        return SimpleNamespace(external_req_id=id_, is_prefilling=new, stats=stats)

    begun, new, late = (("begun", 9, False), ("new", 9, True), ("late", 1, True))
    found = core(
        requests=[request(id_, age, new=is_new) for id_, age, is_new in (begun, new, late)]
    )
    assert found.prefilling_request_ids(time.monotonic() - 5) == {"new"}
    assert found.decoding_request_ids == {"begun"}


async def test_pending_calls_fail_when_a_dead_core_is_removed() -> None:
    pending, finished = (asyncio.get_running_loop().create_future() for _ in range(2))
    finished.set_result(True)
    dead = core(calls=[pending, finished])
    assert not dead.is_idle
    await dead.fail_calls_and_close()
    with pytest.raises(EngineDead):
        await pending
    assert (dead.is_idle, await finished) == (True, True)
    assert not core(requests=["running"]).is_idle


@pytest.mark.parametrize(
    ("number", "crashed"),
    [(signal.SIGKILL, False), (signal.SIGTERM, False), (signal.SIGSEGV, True)],
)
def test_the_signal_that_ended_a_core_is_reported(
    number: signal.Signals, *, crashed: bool, start_process: StartProcess
) -> None:
    rank = start_process(time.sleep, 60)
    dead = core(rank)
    os.kill(rank.pid or 0, number)
    assert dead.has_crashed() is crashed
    assert dead.stop_and_get_reason() == f"ended by {number.name}"


@pytest.mark.parametrize("status", [0, 1])
def test_the_exit_of_a_core_is_reported_with_its_last_error(
    status: int, start_process: StartProcess
) -> None:
    rank = start_process(sys.exit, status)
    rank.join()
    dead = core(rank, error="ValueError: broken")
    assert dead.has_crashed() is bool(status)
    assert dead.stop_and_get_reason() == "ValueError: broken"


def test_an_out_of_memory_error_gets_a_hint() -> None:
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert core(error=error).stop_and_get_reason() == f"{error} ({OUT_OF_MEMORY_HINT})"


def test_a_stopped_core_is_detected_and_can_be_killed(start_process: StartProcess) -> None:
    rank = start_process(time.sleep, 60)
    stopped = core(rank)
    assert (stopped.is_paused, stopped.is_compiling) == (False, False)
    os.kill(rank.pid or 0, signal.SIGSTOP)
    wait_until(lambda: stopped.is_paused)
    stopped.kill()
    assert rank.exitcode == -signal.SIGKILL


# Output of a core


def run_captured(code: str, capfd: pytest.CaptureFixture[str]) -> tuple[str, str | None]:
    """Run code in a process with captured output; return the forwarded output and the error."""
    output = CoreOutput()
    with output.capture():
        child = subprocess.Popen([sys.executable, "-c", code])
    child.wait()
    error = output.close_and_get_error()
    return "".join(capfd.readouterr()), str(error) if error else None


def test_output_is_forwarded_and_its_last_error_is_returned(
    capfd: pytest.CaptureFixture[str],
) -> None:
    code = "import os; print('one'); print('x' * 100_000); os.write(2, b'no end')"
    assert run_captured(code, capfd) == (f"one\n{'x' * 100_000}\nno end", None)
    code = "import sys; print('KeyError: 1', file=sys.stderr); raise ValueError('two\\nlines')"
    forwarded, error = run_captured(code, capfd)
    assert ("Traceback" in forwarded, error) == (True, "ValueError: two")


def test_reading_ends_although_another_process_has_the_pipes_open(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_module, "DRAIN_TIMEOUT_S", 0.1)
    pid_file, sleeper = tmp_path / "pid", [sys.executable, "-c", "import time; time.sleep(600)"]
    spawn = f"import subprocess; pid = subprocess.Popen({sleeper}).pid; "
    assert run_captured(f"{spawn}open({str(pid_file)!r}, 'w').write(str(pid))", capfd) == ("", None)
    sleeping = psutil.Process(int(pid_file.read_text()))
    assert sleeping.status() != psutil.STATUS_ZOMBIE
    sleeping.kill()


def test_the_output_of_this_process_is_restored(capfd: pytest.CaptureFixture[str]) -> None:
    output = CoreOutput()
    with output.capture():
        os.write(1, b"captured\n")
    os.write(1, b"own\n")
    assert output.close_and_get_error() is None
    assert sorted(capfd.readouterr().out.splitlines()) == ["captured", "own"]


# Changes that startup makes in this process: vLLM's variables and metrics


NAME = "VLLM_CPU_KVCACHE_SPACE"


@pytest.fixture(autouse=True)
def _reset_vllm_variables() -> Iterator[None]:
    yield
    vllm.envs.disable_envs_cache()


def test_vllm_reads_its_variables_only_while_a_core_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with allow_environ_changes():
        monkeypatch.setenv(NAME, "3")
        assert vllm.envs.VLLM_CPU_KVCACHE_SPACE == 3
    monkeypatch.setenv(NAME, "4")
    assert vllm.envs.VLLM_CPU_KVCACHE_SPACE == 3
    with allow_environ_changes():
        assert vllm.envs.VLLM_CPU_KVCACHE_SPACE == 4


def test_the_metrics_of_an_engine_have_their_own_registry() -> None:
    move_vllm_metrics()  # metrics that importing vLLM may have registered
    vllms, other = Counter("vllm:asked", "Requests."), Counter("vllm_test", "Another's.")
    vllms.inc()
    try:
        assert REGISTRY.get_sample_value("vllm:asked_total") == 1
        registry = move_vllm_metrics()
        assert REGISTRY.get_sample_value("vllm:asked_total") is None
        assert REGISTRY.get_sample_value("vllm_test_total") == 0
        assert [family.name for family in registry.collect()] == ["vllm:asked"]
    finally:
        REGISTRY.unregister(other)
    assert list(move_vllm_metrics().collect()) == []
