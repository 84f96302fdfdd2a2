"""Fixtures that read settings with vLLM's own parser; no engine starts."""

import os
from collections.abc import Callable

import pytest
from support.settings import machine_with_gpus, read_settings

from worker.engine.machine import Machine
from worker.engine.start import Start
from worker.settings.mistakes import SettingsError

# Reads variables on a machine that has one GPU by default. Adds the name of a model.
Read = Callable[..., Start]
# Returns the error that is raised for variables with mistakes.
Refuse = Callable[..., SettingsError]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all variables of this machine that a library or a worker's startup could read."""
    for name in os.environ.keys() - {"PATH", "HOME"}:
        monkeypatch.delenv(name)


@pytest.fixture
def read() -> Read:
    def read(machine: Machine | None = None, /, **settings: str) -> Start:
        return read_settings(
            {"MODEL_NAME": "org/model", **settings}, machine or machine_with_gpus(1)
        )

    return read


@pytest.fixture
def refuse(read: Read) -> Refuse:
    def refuse(machine: Machine | None = None, /, **settings: str) -> SettingsError:
        with pytest.raises(SettingsError) as caught:
            read(machine, **settings)
        return caught.value

    return refuse
