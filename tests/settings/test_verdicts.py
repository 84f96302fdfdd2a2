"""The doctor's verdict about pairs of settings and models; the starts' own are a slow test.

See tests/platform/starts/test_verdicts.py.
"""

import os
from pathlib import Path

import pytest
from huggingface_hub import constants
from support.processes.commands import HOME
from support.tables.starts import PAIRS, Pair, environ, places

from worker import doctor
from worker.doctor.findings import failed, render


@pytest.fixture(scope="module")
def directory(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("starts")
    places(demo_model, made)
    return made


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_doctor_says_whether_the_worker_would_start(
    pair: Pair, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The library reads the variable only when it is imported.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    os.environ.clear()
    os.environ.update(HOME, **environ(pair, directory))
    findings = list(doctor.examine())
    output = " ".join(render(findings).split())
    assert failed(findings) is not pair.starts, output
    assert pair.words in output
