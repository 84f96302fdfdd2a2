"""The hub's listing without its form: the jobs that it tries, and the machines."""

import json
from itertools import chain
from typing import Annotated, Any

import pytest
from listed import WORKERS
from pydantic import BaseModel, ConfigDict, Field
from support import ROOT
from support.settings import read_settings

from worker.doctor.gpus.pools import POOLS
from worker.job import OpenAIJob, RawJob, parse_input
from worker.routes.openai import ROUTES

LISTING = ROOT / ".runpod"

TYPES = {pool.id: [kind.id for kind in pool.types] for pool in POOLS}

Text = Annotated[str, Field(min_length=1)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Case(Strict):
    name: Text
    input: dict[str, Any] = Field(min_length=1)
    timeout_ms: int = Field(alias="timeout", ge=1)


class Variable(Strict):
    key: Text
    value: str


class Machine(Strict):
    gpu: Text = Field(alias="gpuTypeId")
    gpus: int = Field(alias="gpuCount", ge=1)
    cuda: list[str] = Field(alias="allowedCudaVersions", min_length=1)
    env: list[Variable]


class Trial(Strict):
    tests: list[Case] = Field(min_length=1)
    config: Machine


@pytest.fixture(scope="module")
def trial() -> Trial:
    return Trial.model_validate_json((LISTING / "tests.json").read_bytes())


@pytest.fixture(scope="module")
def listed() -> dict[str, Any]:
    """The listing's machines and presets; test_listings tests its form."""
    config: dict[str, Any] = json.loads((LISTING / "hub.json").read_bytes())["config"]
    return config


def environ(trial: Trial) -> dict[str, str]:
    return {variable.key: variable.value for variable in trial.config.env}


def test_the_hub_tries_both_forms_of_a_job_on_existing_routes(trial: Trial) -> None:
    jobs = [parse_input(test.input) for test in trial.tests]
    asked = {job.path for job in jobs if isinstance(job, OpenAIJob)}
    assert "/chat/completions" in asked
    assert all(any(route.match(path) is not None for route in ROUTES) for path in asked)
    assert any(isinstance(job, RawJob) for job in jobs)
    assert len({test.name for test in trial.tests}) == len(trial.tests)


def test_the_settings_that_the_hub_tries_start_without_a_warning(trial: Trial) -> None:
    assert read_settings(environ(trial), WORKERS).warnings == ()


def test_the_hub_tries_a_model_that_it_proposes(trial: Trial, listed: dict[str, Any]) -> None:
    proposed = {preset["defaults"]["MODEL_NAME"] for preset in listed["presets"]}
    assert environ(trial)["MODEL_NAME"] in proposed


def test_the_hub_tries_a_machine_that_the_listing_allows(
    trial: Trial, listed: dict[str, Any]
) -> None:
    pools = listed["gpuIds"].split(",")
    assert set(pools) <= TYPES.keys()
    assert trial.config.gpu in chain.from_iterable(TYPES[pool] for pool in pools)
    assert trial.config.gpus == listed["gpuCount"]
    assert trial.config.cuda == listed["allowedCudaVersions"]
