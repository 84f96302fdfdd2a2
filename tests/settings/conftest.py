"""Settings as a start reads them, with vLLM's own parser; no engine starts."""

import os
from collections.abc import Callable

import pytest
from support.settings import gpus, read_settings

from worker.engine import start
from worker.engine.machine import Machine
from worker.settings.mistakes import SettingsError

# Reads variables, by default beside the name of a model, on a machine with one GPU.
Read = Callable[..., start.Start]
# Returns what is said of variables that hold mistakes.
Refuse = Callable[..., SettingsError]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no variable of this machine that a library or a start reads."""
    for name in os.environ.keys() - {"PATH", "HOME"}:
        monkeypatch.delenv(name)


@pytest.fixture
def read() -> Read:
    def read(on: Machine | None = None, /, **settings: str) -> start.Start:
        return read_settings({"MODEL_NAME": "org/model", **settings}, on or gpus(1))

    return read


@pytest.fixture
def refuse(read: Read) -> Refuse:
    def refuse(on: Machine | None = None, /, **settings: str) -> SettingsError:
        with pytest.raises(SettingsError) as caught:
            read(on, **settings)
        return caught.value

    return refuse
