"""Errors of requests to a core that dies: whose fault its death is."""

from typing import Any

import pytest
from vllm.v1.engine.exceptions import EngineDeadError

from worker.engine.run.core import CoreFailed
from worker.engine.start import cores
from worker.engine.start.refusals import is_machine_fault
from worker.errors import EngineDead, MachineUnfit

DECODER_ERROR = KeyError("a token without a text")


class DyingCore:
    """A core whose engine is dead; ``errored`` is an attribute of vLLM's client."""

    errored = True

    def __init__(self, *, crashed: bool = True, exited: bool = True) -> None:
        self.client, self.crashed, self.has_exited = self, crashed, exited
        self.stopped = False

    def has_crashed(self) -> bool:
        return self.crashed

    def stop_and_get_reason(self) -> str:
        self.stopped = True
        return "IndexError: index out of range in self"


def error_of_first_request(core: Any, cause: Exception | None = None) -> Exception:
    with pytest.raises(Exception) as raised, cores.explain_death(core):  # noqa: PT011 - the tests check its class
        raise EngineDead from cause
    return raised.value


def test_a_request_that_crashes_the_core_fails_the_start_with_the_cores_error() -> None:
    error = error_of_first_request(DyingCore())
    assert (type(error), str(error)) == (CoreFailed, "IndexError: index out of range in self")
    assert not is_machine_fault(error)


def test_a_core_that_is_killed_from_outside_is_another_workers_business() -> None:
    error = error_of_first_request(DyingCore(crashed=False))
    assert isinstance(error, MachineUnfit)
    assert is_machine_fault(error)


def test_the_kernel_kills_the_core_of_a_model_that_needs_more_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kills = iter((3, 4))
    monkeypatch.setattr(cores, "count_oom_kills", lambda: next(kills))
    error = error_of_first_request(DyingCore(crashed=False))
    assert (type(error), str(error)) == (CoreFailed, cores.OOM_KILLED)
    assert not is_machine_fault(error)


def test_a_core_that_is_dead_but_has_not_exited_has_crashed() -> None:
    error = error_of_first_request(DyingCore(exited=False), EngineDeadError())
    assert (type(error), str(error)) == (CoreFailed, "IndexError: index out of range in self")


def test_the_code_that_decodes_the_output_may_fail_while_the_core_lives() -> None:
    core = DyingCore(exited=False)
    wrapped = RuntimeError("the output handler has failed")
    wrapped.__cause__ = DECODER_ERROR
    assert error_of_first_request(core, wrapped) is DECODER_ERROR
    assert core.stopped


def test_an_error_of_a_request_to_a_living_core_is_not_changed() -> None:
    core = DyingCore()
    core.errored = False
    assert isinstance(error_of_first_request(core), EngineDead)
    assert not core.stopped
