"""Memory of trainings: estimated from the files of the model, reserved, and waited for."""

import asyncio
import contextlib
import json
import math
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from support.fine_tunes import (
    CHECKED,
    DONE,
    failure_of,
    run_attempt,
    scripted_fine_tune,
    start_attempt,
    trainer_pids,
)
from support.processes.background import HUNG_S, poll_until

from worker.errors import EngineDead, InvalidInput, VolumeError
from worker.fine_tunes.child import TrainerProcess
from worker.fine_tunes.memory import (
    DeviceMemory,
    MemoryInUse,
    check_memory,
    device_memory,
    needed_bytes,
)
from worker.fine_tunes.spec import CHECK_OPTION, Lora, RowsFile, Spec
from worker.fine_tunes.step import WIND_DOWN_S
from worker.process.memory import GIB
from worker.settings.environment import trainer_environ

# Sizes of a Llama model with 8 billion weights.
LLAMA = {"num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 128256}
LLAMA |= {"intermediate_size": 14336}
WEIGHTS = 8_030_000_000


def spec_at(path: Path, config: object = LLAMA, **changes: object) -> Spec:
    """Write a model's configuration and a sparse file of weights; return a training's spec."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    tensor = {"dtype": "BF16", "shape": [WEIGHTS], "data_offsets": [0, 2 * WEIGHTS]}
    header = json.dumps({"w": tensor}).encode()
    with (path / "model.safetensors").open("wb") as opened:
        opened.write(len(header).to_bytes(8, "little") + header)
        opened.truncate(8 + len(header) + 2 * WEIGHTS)
    fixed = {
        "model": path,
        "tokenizer": path,
        "max_length": 4096,
        "training": RowsFile(path=path),
    }
    return Spec.model_validate({**fixed, **changes})


@pytest.mark.parametrize(
    ("device", "free", "total", "error", "message"),
    [
        # On a CPU, weights have 32 bits.
        ("cpu", 16, 24, InvalidInput, r"at least 3\d\.\d GiB .* 24\.0 GiB\. .*--train"),
        ("cpu", 16, 64, MemoryInUse, r"16\.0 GiB left\."),
        ("cuda", 15, 15, InvalidInput, "this GPU has"),
    ],
)
def test_a_training_that_does_not_fit_is_refused_with_sizes_and_advice(
    tmp_path: Path, device: str, free: int, total: int, error: type[InvalidInput], message: str
) -> None:
    spec = spec_at(tmp_path, device=device)
    with pytest.raises(InvalidInput, match=message) as exc_info:
        check_memory(spec, DeviceMemory(free * GIB, total * GIB))
    assert type(exc_info.value) is error
    # With enough memory, the training is accepted.
    enough = {"cpu": 64, "cuda": 24}[device] * GIB
    check_memory(spec, DeviceMemory(enough, enough))


def test_a_larger_rank_and_longer_rows_need_more_memory(tmp_path: Path) -> None:
    changes: list[dict[str, object]] = [{}, {"lora": Lora(r=256)}, {"max_length": 8}]
    default, large_rank, short_rows = (
        needed_bytes(spec_at(tmp_path, **change)) or 0 for change in changes
    )
    # 671 million parameters instead of 42 million, each with a gradient and two averages.
    assert 9 * GIB < large_rank - default < 11 * GIB
    assert 0 < short_rows < default
    # Only the text model of a vision model counts.
    assert needed_bytes(spec_at(tmp_path / "vision", {"text_config": LLAMA})) == default


@pytest.mark.parametrize(
    "config", [{}, [], {"text_config": 5}, {**LLAMA, "hidden_size": "wide"}, "cut off"], ids=str
)
def test_a_model_with_incomplete_files_is_not_refused(tmp_path: Path, config: object) -> None:
    spec = spec_at(tmp_path, LLAMA if config == "cut off" else config)
    if config == "cut off":
        os.truncate(tmp_path / "model.safetensors", 100)
    assert needed_bytes(spec) is None
    check_memory(spec, DeviceMemory(1, 1))


# Output of nvidia-smi, which must be called for the first visible GPU.
FIRST_GPU = '[ "$1 $2" = "-i 3" ] && echo "1024, 2048"'


@pytest.mark.parametrize(
    ("script", "visible", "expected"),
    [
        (None, None, None),
        ('echo "20480, 81920\n81559, 81920"', None, DeviceMemory(20 * GIB, 80 * GIB)),
        ("echo '[N/A]'", None, None),
        ("exit 9", None, None),
        (FIRST_GPU, "3,1", DeviceMemory(GIB, 2 * GIB)),
    ],
)
def test_the_memory_of_a_gpu_is_read_with_nvidia_smi(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str | None,
    visible: str | None,
    expected: DeviceMemory | None,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if script:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device_memory("cuda") == expected
    # The trainer orders GPUs in the same way.
    assert trainer_environ(wandb=False)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    cpu_memory = device_memory("cpu")
    assert cpu_memory
    assert GIB // 4 < cpu_memory.free < cpu_memory.total


class Memory:
    """A fake of the engine's memory that logs reservations."""

    def __init__(self, *, is_free: bool = True, on_release: Callable[[], object] = bool) -> None:
        self.log: list[str] = []
        self._on_release = on_release
        self._free = asyncio.Event()
        if is_free:
            self._free.set()

    @contextlib.asynccontextmanager
    async def reserve(self) -> AsyncIterator[None]:
        self.log.append("requested")
        try:
            await self._free.wait()
            self.log.append("acquired")
            yield
        finally:
            self.log.append("released")
            self._on_release()


async def test_a_training_needs_a_volume(tmp_path: Path) -> None:
    fine_tune = scripted_fine_tune(tmp_path, DONE)
    with pytest.raises(VolumeError, match="set BASE_PATH"):
        await run_attempt(fine_tune, base_path=tmp_path / "none")
    assert (fine_tune.status, trainer_pids(fine_tune)) == ("queued", [])


async def test_memory_is_reserved_for_the_training_but_not_for_publishing(tmp_path: Path) -> None:
    memory = Memory()

    async def check(_: Path) -> None:
        memory.log.append("checked")

    fine_tune = scripted_fine_tune(tmp_path, [*CHECKED, ["checkpoint", 5], ["exit", 1]], DONE)
    assert (
        await run_attempt(
            fine_tune,
            reserve_memory=memory.reserve,
            check_adapter=check,
        )
        == "ended"
    )
    assert memory.log == ["requested", "acquired", "released", "checked"]


async def test_a_fine_tune_that_is_cancelled_while_memory_is_freed_is_not_trained(
    tmp_path: Path,
) -> None:
    memory = Memory(is_free=False)
    fine_tune = scripted_fine_tune(tmp_path, DONE)
    task = start_attempt(fine_tune, reserve_memory=memory.reserve)
    await poll_until(lambda: memory.log)
    fine_tune.cancel()
    assert await asyncio.wait_for(task, HUNG_S) == "ended"
    assert memory.log == ["requested", "released"]
    assert (fine_tune.status, trainer_pids(fine_tune)) == ("cancelled", [])


async def test_a_cancelled_fine_tune_has_ended_before_its_memory_is_released(
    tmp_path: Path,
) -> None:
    statuses: list[str] = []
    memory = Memory(on_release=lambda: statuses.append(fine_tune.status))
    fine_tune = scripted_fine_tune(tmp_path, [*CHECKED, ["wait"]])
    task = start_attempt(fine_tune, reserve_memory=memory.reserve)
    await poll_until(lambda: trainer_pids(fine_tune) != [])
    fine_tune.cancel()
    assert await task == "ended"
    assert statuses == ["cancelled"]


async def test_a_failed_reservation_of_memory_fails_only_the_job(tmp_path: Path) -> None:
    @contextlib.asynccontextmanager
    async def reserve() -> AsyncIterator[None]:
        raise EngineDead
        yield

    fine_tune = scripted_fine_tune(tmp_path, DONE)
    with pytest.raises(EngineDead):
        await run_attempt(fine_tune, reserve_memory=reserve)
    assert (fine_tune.status, trainer_pids(fine_tune)) == ("queued", [])


async def test_a_job_whose_time_is_over_does_not_wait_for_the_engine(tmp_path: Path) -> None:
    release = asyncio.Event()

    @contextlib.asynccontextmanager
    async def reserve() -> AsyncIterator[None]:
        yield
        await release.wait()

    fine_tune = scripted_fine_tune(tmp_path, [*CHECKED, ["step", 5], ["wait"]])
    task = start_attempt(fine_tune, reserve_memory=reserve, seconds=WIND_DOWN_S + 1)
    assert await asyncio.wait_for(task, HUNG_S) == "left"
    assert not fine_tune.is_leased()
    release.set()


async def test_no_memory_is_reserved_for_wrong_rows(tmp_path: Path) -> None:
    memory = Memory()
    mistake = {"file": "training_file", "line": 3, "message": "no answer"}
    fine_tune = scripted_fine_tune(tmp_path, [["checked", {"mistakes": [mistake]}]])
    assert await run_attempt(fine_tune, reserve_memory=memory.reserve) == "ended"
    assert (failure_of(fine_tune)[0], memory.log) == ("invalid_training_file", [])


async def test_rows_are_not_checked_again_while_jobs_wait_for_memory(tmp_path: Path) -> None:
    fine_tune = scripted_fine_tune(tmp_path, DONE)
    for _ in range(2):
        memory = Memory(is_free=False)
        task = start_attempt(fine_tune, reserve_memory=memory.reserve)
        await poll_until(lambda log=memory.log: bool(log))  # type: ignore[misc]  # its default
        task.cancel()
        await asyncio.wait({task})
    assert len(fine_tune.attempt_paths()) == 1


async def test_rows_are_checked_at_a_low_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, start = [], TrainerProcess.start

    async def record_start(
        command: Sequence[str], *, low_priority: bool, wandb: bool
    ) -> TrainerProcess:
        starts.append((CHECK_OPTION in command, low_priority))
        return await start(command, low_priority=low_priority, wandb=wandb)

    monkeypatch.setattr(TrainerProcess, "start", record_start)
    await run_attempt(
        scripted_fine_tune(tmp_path, DONE),
        reserve_memory=Memory().reserve,
        low_priority=False,
    )
    assert starts == [(True, True), (False, False)]


def refuse(_: Spec) -> None:
    raise InvalidInput("it needs 8.0 GiB")


def fail_first(count: float) -> Callable[[Spec], None]:
    """Return a check of the memory that fails the first ``count`` times."""
    remaining = [count]

    def check(_: Spec) -> None:
        remaining[0] -= 1
        if remaining[0] >= 0:
            raise MemoryInUse("it needs 8.0 GiB")

    return check


CHECK = "worker.fine_tunes.step.check_memory"


async def test_a_training_waits_for_memory_that_is_temporarily_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine_tune = scripted_fine_tune(tmp_path, DONE)
    monkeypatch.setattr(CHECK, fail_first(3))
    await run_attempt(fine_tune)
    assert fine_tune.status == "succeeded"


@pytest.mark.parametrize(
    ("check", "log"),
    [(refuse, []), (fail_first(math.inf), ["requested", "acquired", "released"])],
    ids=["never", "not now"],
)
async def test_insufficient_memory_fails_the_fine_tune_without_starting_a_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: Callable[[Spec], None], log: list[str]
) -> None:
    monkeypatch.setattr("worker.fine_tunes.step.MEMORY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(CHECK, check)
    fine_tune, memory = scripted_fine_tune(tmp_path, DONE), Memory()
    await run_attempt(fine_tune, reserve_memory=memory.reserve)
    assert failure_of(fine_tune) == ("not_trainable", "it needs 8.0 GiB", None)
    assert (memory.log, trainer_pids(fine_tune)) == (log, [])


async def test_a_fine_tune_that_waits_for_memory_can_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine_tune = scripted_fine_tune(tmp_path, DONE)

    def check(_: Spec) -> None:
        if fine_tune.stop_reason() is None:
            fine_tune.cancel()
        raise MemoryInUse("it needs 8.0 GiB")

    monkeypatch.setattr(CHECK, check)
    assert await asyncio.wait_for(run_attempt(fine_tune), HUNG_S) == "ended"
    assert fine_tune.status == "cancelled"
