"""The generated files, and the hub's trial: in the platform's formats, accepted by the worker."""

import json
import re
from itertools import chain
from typing import Any

import listings
import pytest
from forms import ASKED_ELSEWHERE, PROPOSED
from listed import WORKERS, Catalogue
from support import ROOT
from support.settings import read_settings

from worker.dialects import parse_input
from worker.dialects.table import ROUTES
from worker.doctor.gpus.pools import POOLS
from worker.job import OpenAIJob, RawJob
from worker.settings import Settings
from worker.settings.names import ALIASES
from worker.settings.values import text

Json = dict[str, Any]


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return listings.listings()


@pytest.fixture(scope="module")
def console(made: dict[str, str]) -> Json:
    form: Json = json.loads(made["worker-config.json"])
    return form


@pytest.fixture(scope="module")
def hub_listing(made: dict[str, str]) -> Json:
    config: Json = json.loads(made[".runpod/hub.json"])["config"]
    return config


def test_the_committed_files_are_up_to_date(made: dict[str, str]) -> None:
    assert listings.differing(made) == [], "run: make listings"


# The platform's forms:


def test_the_consoles_fields_are_those_of_its_categories_and_fit_their_controls(
    console: Json,
) -> None:
    (version,) = console["versions"].values()
    assert re.fullmatch(r"\d+\.\d+", version["minimumCudaVersion"])
    named = [*chain.from_iterable(category["settings"] for category in version["categories"])]
    assert sorted(named) == sorted(console["schema"])
    for name, field in console["schema"].items():
        kind, value, choices = field["type"], field["value"], field.get("options", ())
        assert field["env_var_name"] == name
        assert kind in {"text", "number", "select", "toggle"}
        assert (kind == "toggle", kind == "select") == (isinstance(value, bool), bool(choices))
        assert kind != "number" or value == "" or float(value) >= 0
        assert not choices or value in {choice["value"] for choice in choices}


def test_the_hubs_fields_fit_their_types(hub_listing: Json) -> None:
    for field in (variable["input"] for variable in hub_listing["env"]):
        assert field["type"] in {"string", "number", "boolean", "huggingface"}
        is_switch = field["type"] == "boolean"
        assert is_switch == isinstance(field.get("default"), bool) == ("trueValue" in field)
        assert field["type"] == "string" or "options" not in field


def test_both_forms_ask_for_the_same_settings_which_exist(console: Json, hub_listing: Json) -> None:
    asked = [variable["key"] for variable in hub_listing["env"]]
    assert sorted({*asked} - ASKED_ELSEWHERE) == sorted(console["schema"])
    assert 30 <= len(asked) == len({*asked}) <= 45
    names = {*asked}.union(*(preset["defaults"] for preset in hub_listing["presets"]))
    own = {name.upper() for name in Settings.model_fields}
    assert names - own - ALIASES.keys() - Catalogue().options.names == set()


def test_an_unchanged_form_changes_no_more_than_it_proposes(
    console: Json, hub_listing: Json
) -> None:
    model = {"MODEL_NAME": "org/model"}
    bare = read_settings(model | PROPOSED, WORKERS)
    shown: Json = {name: field["value"] for name, field in console["schema"].items()}
    asked = {field["key"]: field["input"].get("default") for field in hub_listing["env"]}
    for form in (shown, asked):
        filled = {name: text(value) for name, value in form.items()}
        sent = read_settings(filled | model, WORKERS)
        assert sent.settings.model_dump() == bare.settings.model_dump()
        assert sent.arguments.vllm == bare.arguments.vllm
        assert sent.warnings == ()
        # It leaves an embedding model its share.
        both = filled | model | {"EMBEDDING_MODEL_NAME": "org/embedder"}
        assert read_settings(both, WORKERS).arguments.vllm.gpu_memory_utilization == 0.85


def test_every_preset_starts_without_a_warning_and_leaves_jobs_to_others(hub_listing: Json) -> None:
    for preset in hub_listing["presets"]:
        environ = {name: text(value) for name, value in preset["defaults"].items()}
        assert read_settings(environ, WORKERS).warnings == (), preset["name"]
        assert environ["MAX_CONCURRENCY"] == "auto"


def test_the_hub_tries_both_forms_of_a_job_on_what_the_listing_proposes(hub_listing: Json) -> None:
    trial = json.loads((ROOT / ".runpod" / "tests.json").read_bytes())
    jobs = [parse_input(test["input"]) for test in trial["tests"]]
    paths = {job.path for job in jobs if isinstance(job, OpenAIJob)}
    assert "/chat/completions" in paths
    assert all(any(route.match(path) is not None for route in ROUTES) for path in paths)
    assert any(isinstance(job, RawJob) for job in jobs)
    config = trial["config"]
    environ = {variable["key"]: variable["value"] for variable in config["env"]}
    assert read_settings(environ, WORKERS).warnings == ()
    proposed = {preset["defaults"]["MODEL_NAME"] for preset in hub_listing["presets"]}
    assert environ["MODEL_NAME"] in proposed
    types = {pool.id: {kind.id for kind in pool.types} for pool in POOLS}
    pools = hub_listing["gpuIds"].split(",")
    assert any(config["gpuTypeId"] in types[pool] for pool in pools)
    same = ("gpuCount", "allowedCudaVersions")
    assert [config[name] for name in same] == [hub_listing[name] for name in same]
