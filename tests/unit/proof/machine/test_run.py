"""A run of steps: every failure is recorded, and the next steps run."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from proof.machine.plan import Session, Step
from proof.machine.result import Failure, Proof
from proof.machine.run import Run
from proof.measure.comparison import Round
from proof.measure.processes import Lost, run_process
from proof.measure.sides import Conditions, HttpSide

CONDITIONS = Conditions({}, {})


@asynccontextmanager
async def start_side(_: Path, __: Conditions) -> AsyncIterator[HttpSide]:
    async with run_process((sys.executable, "-c", "input()"), {}, stdin=-1) as process:
        yield HttpSide("http://127.0.0.1:9/v1", process, 1.5)


@asynccontextmanager
async def fail_to_start(_: Path, __: Conditions) -> AsyncIterator[HttpSide]:
    raise Lost("no memory")
    yield


async def run_steps(start: object = start_side, **steps: Step) -> Proof:
    proof = Proof("2026-11-28", "a GPU", "a model", {}, {})
    names = {name.replace("_", " "): step for name, step in steps.items()}
    session = Session("worker", "first start", start, CONDITIONS, names, is_reported=True)  # type: ignore[arg-type]  # one of the two above
    await Run(proof, Path(), 1 + len(steps)).run([session])
    return proof


async def measure(_: HttpSide) -> Round:
    return Round({"1 stream": {"tokens_per_s": 1234.0}})


async def fail_with_a_group(side: HttpSide) -> Round:
    raise ExceptionGroup("two", [ValueError("the first\nreason"), ValueError("the second")])


async def exit_side(side: HttpSide) -> Round:
    side.process.kill()
    await side.process.wait()
    return Round({})


async def test_figures_are_recorded_with_those_of_the_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    proof = await run_steps(one=measure)
    assert [each.figures for each in proof.rounds["worker"]] == [
        {"first start": {"first_s": 1.5}},
        {"1 stream": {"tokens_per_s": 1234.0}},
    ]
    assert proof.failures == []
    assert "[2/2] worker: one" in " ".join(capsys.readouterr().out.replace("[ ", "[").split())


async def test_a_step_after_a_failed_one_runs() -> None:
    proof = await run_steps(broken=fail_with_a_group, one=measure)
    assert proof.failures == [Failure("worker", "broken", "ValueError: the first reason")]
    assert proof.rounds["worker"][-1].figures == {"1 stream": {"tokens_per_s": 1234.0}}


async def test_all_steps_of_a_side_that_does_not_start_fail(
    capsys: pytest.CaptureFixture[str],
) -> None:
    proof = await run_steps(fail_to_start, one=measure)
    assert proof.failures == [
        Failure("worker", "first start", "no memory"),
        Failure("worker", "one", "the side is not running"),
    ]
    assert "failed: no memory" in capsys.readouterr().out


async def test_a_step_after_the_exit_of_its_side_fails() -> None:
    proof = await run_steps(death=exit_side, one=measure)
    assert proof.failures == [Failure("worker", "one", "the side is not running")]


@asynccontextmanager
async def fail_to_stop(folder: Path, conditions: Conditions) -> AsyncIterator[HttpSide]:
    async with start_side(folder, conditions) as side:
        yield side
    raise OSError("disk full")


async def test_an_error_at_the_end_of_a_side_does_not_end_the_run() -> None:
    proof = await run_steps(fail_to_stop, one=measure)
    assert proof.failures == [Failure("worker", "end of: first start", "OSError: disk full")]
    assert len(proof.rounds["worker"]) == 2
