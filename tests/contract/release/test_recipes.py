"""Tests that the doctor confirms the recipes of well-known models and the table of GPU pools.

``WRITE_PAGES=1 .venv/bin/python -m pytest tests/contract/release/test_recipes.py`` writes the
page's table.
"""

import math
import platform
from pathlib import Path

import pytest
import torch
import yaml
from catalogue import REFERENCE_MACHINE
from forms import candidate
from recipes import FOLDER, RECIPES, Recipe
from support import ROOT
from support.doctor import describe_directory, options
from support.pages import check_table
from support.settings import read_settings
from support.tables.models import RECORDED_MODELS

from worker.doctor.candidate import Candidate
from worker.doctor.gpus import Fit, Verdict, parse_choice
from worker.doctor.memory import GpuJudge
from worker.engine.machine import Gpu, Machine

POOLS = (
    *("AMPERE_16", "AMPERE_24", "ADA_24", "AMPERE_48", "ADA_48_PRO"),
    *("AMPERE_80", "ADA_80_PRO", "HOPPER_141"),
)


def test_each_recipe_has_a_file_and_there_are_no_other_files() -> None:
    names = [recipe.name for recipe in RECIPES]
    assert sorted(path.stem for path in (ROOT / FOLDER).iterdir()) == sorted(names)
    assert len(names) >= 30


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(recipe, id=recipe.name, marks=[pytest.mark.slow] if number else [])
        for number, recipe in enumerate(RECIPES)
    ],
)
def test_a_recipe_has_no_warnings_and_its_whole_context_fits_its_gpus(recipe: Recipe) -> None:
    file = ROOT / FOLDER / f"{recipe.name}.yaml"
    read = read_settings({"VLLM_CONFIG_FILE": str(file)}, REFERENCE_MACHINE)
    assert read.warnings == ()
    choice = parse_choice(recipe.gpus)
    settings = yaml.safe_load(file.read_text())
    verdict = GpuJudge([candidate(settings, options(choice.to_machine))]).worst_verdict(choice)
    assert verdict.fit is Fit.FITS, verdict.reason
    if not recipe.pooling:
        assert read.settings.default_max_tokens > 16
        assert verdict.context >= 16384


def format_verdict(verdict: Verdict) -> str:
    """Return a table cell: a model's context on a GPU and the number of concurrent sequences."""
    if verdict.fit not in (Fit.FITS, Fit.SHORTER):
        return "no" if verdict.fit is Fit.NO else verdict.fit.value
    texts = "any" if math.isinf(verdict.concurrency) else str(math.floor(verdict.concurrency))
    shorter = ", shorter" if verdict.fit is Fit.SHORTER else ""
    return f"{verdict.context} x {texts}{shorter}"


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "able"), [("x86_64", True), ("aarch64", False)])
def test_the_table_of_pools_matches_the_doctor_on_any_processor(
    machine: str, able: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    for name in dir(torch.cpu):
        if name.startswith("_is_"):
            monkeypatch.setattr(torch.cpu, name, lambda: able)
    rows = []
    for name, model in RECORDED_MODELS.items():
        place = model.write(tmp_path / name)
        engine = options(Machine(cpu=False, gpus=(Gpu("", 0),))).parse_engine_settings(
            {"MODEL": str(place), **model.settings}
        )
        judge = GpuJudge([Candidate(engine.arguments, describe_directory(place))])
        cells = (format_verdict(judge.worst_verdict(parse_choice(pool))) for pool in POOLS)
        rows.append([f"`{model.name}`", name, *cells])
    check_table(ROOT / "docs" / "gpus.md", ("model", "kind", *POOLS), rows)
