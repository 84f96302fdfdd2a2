"""The recipes for well-known models: each starts on the GPUs that it names, as the check has it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from listed import WORKERS
from presets import candidate
from recipes import FOLDER, RECIPES, Recipe, known
from support import ROOT
from support.doctor import options
from support.settings import read_settings

from worker.doctor.gpus import asked
from worker.doctor.gpus.judge import Judge
from worker.doctor.gpus.verdicts import Fit
from worker.settings.sources import gather

BY_NAME = {recipe.name: recipe for recipe in RECIPES}
# Elements that a file of weights has twice: the matrix that is both the first and the last.
TWICE = {"Qwen/Qwen3-0.6B": 151936 * 1024}


def place(recipe: Recipe) -> Path:
    return ROOT / FOLDER / f"{recipe.name}.yaml"


def test_there_is_a_file_for_each_recipe_and_none_besides() -> None:
    assert {path.stem for path in (ROOT / FOLDER).iterdir()} == BY_NAME.keys()
    assert len(BY_NAME) == len(RECIPES) >= 30


@pytest.mark.parametrize("recipe", RECIPES, ids=BY_NAME)
def test_the_gpus_that_a_recipe_names_hold_all_of_its_context(recipe: Recipe) -> None:
    choice = asked.choice(recipe.gpus)
    settings = yaml.safe_load(place(recipe).read_text())
    verdict = Judge([candidate(settings, options(choice.machine))]).verdict(choice)
    assert verdict.fit is Fit.FITS, verdict.why
    if not recipe.pooling:
        assert verdict.context >= 16384


@pytest.mark.parametrize("recipe", RECIPES, ids=BY_NAME)
def test_a_recipe_is_read_without_a_warning(recipe: Recipe) -> None:
    given = gather({"VLLM_CONFIG_FILE": str(place(recipe))})
    assert given.mistakes == ()
    assert given.values["MODEL_NAME"] == recipe.model
    read = read_settings({"VLLM_CONFIG_FILE": str(place(recipe))}, WORKERS)
    assert read.warnings == ()
    if not recipe.pooling:
        assert read.settings.default_max_tokens > 16


@pytest.mark.slow
def test_the_figures_of_weights_are_those_of_the_models_classes() -> None:
    # In a process of its own: vLLM changes what transformers builds.
    command = [sys.executable, "-W", "ignore", str(ROOT / "builder" / "elements.py")]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    printed = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE).stdout
    counted = json.loads(printed.splitlines()[-1])
    for name, model in known().items():
        stored = dict(model["tensors"])
        stored["BF16" if "BF16" in stored else "F32"] -= TWICE.get(name, 0)
        assert counted[name] == stored, name
