"""Tests that the generated listings have the platform's formats and suit the worker's settings."""

import json
import re
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import listings
import pytest
from catalogue import REFERENCE_MACHINE, Catalogue, list_own_setting, without_none
from forms import CONSOLE_FIELDS
from pydantic import BaseModel, Field, SecretStr
from support import ROOT
from support.settings import read_settings
from table import Row

from worker.dialects import parse_input
from worker.dialects.table import ROUTES
from worker.doctor.gpus import POOLS
from worker.engine.options.option import read_bounds
from worker.job import OpenAIJob, RawJob
from worker.settings import (
    Boolean,
    Concurrency,
    FineTuneMode,
    NameList,
    NonNegativeFloat,
    PositiveInt,
    Settings,
)
from worker.settings.names import OPTION_BY_SETTING
from worker.settings.values import format_value

Json = dict[str, Any]
# Settings of a form of the platform. It shows all of them, so more would be hard to read.
MAX_FIELDS = 45


@pytest.fixture(scope="module")
def generated_files() -> dict[str, str]:
    return listings.build_files()


@pytest.fixture(scope="module")
def console(generated_files: dict[str, str]) -> Json:
    form: Json = json.loads(generated_files["worker-config.json"])
    return form


@pytest.fixture(scope="module")
def hub_listing(generated_files: dict[str, str]) -> Json:
    config: Json = json.loads(generated_files[".runpod/hub.json"])["config"]
    return config


def test_the_committed_files_are_up_to_date(generated_files: dict[str, str]) -> None:
    assert listings.find_outdated(generated_files) == [], "run: make listings"


def test_the_settings_that_the_page_recommends_are_accepted_together(
    generated_files: dict[str, str],
) -> None:
    _, table = generated_files["docs/settings.md"].split("## The ten most used\n")
    rows = table.partition("##")[0].strip().splitlines()[2:]
    settings = [re.findall(r"`([A-Z_]+)=([^`]+)`", row) for row in rows]
    assert len(rows) == 10
    assert all(settings)
    assert read_settings(dict(chain(*settings)), REFERENCE_MACHINE).warnings == ()


class Samples(BaseModel):
    """Settings of types that the worker's own settings have, or may have."""

    limit: PositiveInt | None = None
    outer: Annotated[int | None, Field(ge=2)] = None
    share: NonNegativeFloat | None = None
    switch: Boolean | None = None
    folder: Path | None = None
    names: NameList | None = None
    mode: FineTuneMode | None = None
    key: SecretStr | None = None
    concurrency: Concurrency | None = None
    pairs: dict[str, int] = {}
    count_or_name: int | str = 1


@pytest.mark.parametrize(
    ("name", "kind", "bounds"),
    [
        ("limit", "integer", {"ge": 1}),
        ("outer", "integer", {"ge": 2}),
        ("share", "number", {"ge": 0}),
        ("switch", "boolean", {}),
        ("folder", "path", {}),
        ("names", "list", {}),
        ("mode", "text", {}),
        ("key", "text", {}),
        ("concurrency", "whole number, `auto`", {}),
    ],
)
def test_an_optional_setting_is_listed_with_its_type(
    name: str, kind: str, bounds: dict[str, float]
) -> None:
    field = Samples.model_fields[name]
    listed = list_own_setting(Row(name, "", ""), field)
    assert (listed.kind, listed.default) == (kind, "")
    assert listed.choices == (("beside", "exclusive", "off") if name == "mode" else ())
    assert read_bounds(without_none(field)) == bounds


@pytest.mark.parametrize("name", ["pairs", "count_or_name"])
def test_a_type_that_the_listings_do_not_know_is_not_listed_as_text(name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name}: the listings don't know the type .*_KINDS"):
        list_own_setting(Row(name, "", ""), Samples.model_fields[name])


# The platform's forms:


def test_every_field_of_the_console_is_in_a_category_and_fits_its_control(
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


def test_both_forms_have_the_same_existing_settings(console: Json, hub_listing: Json) -> None:
    asked = [variable["key"] for variable in hub_listing["env"]]
    assert sorted({*asked} - CONSOLE_FIELDS) == sorted(console["schema"])
    assert len(asked) == len({*asked})
    assert 30 <= len(asked) <= MAX_FIELDS, (
        f"the forms have {len(asked)} settings, and may have 30 to {MAX_FIELDS}: remove form=True "
        "from the least useful row in builder/table"
    )
    names = {*asked}.union(*(preset["defaults"] for preset in hub_listing["presets"]))
    own = {name.upper() for name in Settings.model_fields}
    assert names - own - OPTION_BY_SETTING.keys() - Catalogue().options.names == set()


def test_an_unchanged_form_changes_no_default(console: Json, hub_listing: Json) -> None:
    model = {"MODEL_NAME": "org/model"}
    bare = read_settings(model, REFERENCE_MACHINE)
    shown: Json = {name: field["value"] for name, field in console["schema"].items()}
    asked = {field["key"]: field["input"].get("default") for field in hub_listing["env"]}
    for form in (shown, asked):
        filled = {name: format_value(value) for name, value in form.items()}
        sent = read_settings(filled | model, REFERENCE_MACHINE)
        assert sent.settings.model_dump() == bare.settings.model_dump()
        assert sent.main_arguments.vllm_args == bare.main_arguments.vllm_args
        assert sent.warnings == ()
        # The default leaves GPU memory for an embedding model.
        both = filled | model | {"EMBEDDING_MODEL_NAME": "org/embedder"}
        arguments = read_settings(both, REFERENCE_MACHINE).main_arguments
        assert arguments.vllm_args.gpu_memory_utilization == 0.85


def test_no_preset_causes_a_warning(hub_listing: Json) -> None:
    for preset in hub_listing["presets"]:
        environ = {name: format_value(value) for name, value in preset["defaults"].items()}
        assert read_settings(environ, REFERENCE_MACHINE).warnings == (), preset["name"]


def test_the_hub_tests_both_forms_of_a_job_with_a_proposed_model_and_gpu(hub_listing: Json) -> None:
    trial = json.loads((ROOT / ".runpod" / "tests.json").read_bytes())
    jobs = [parse_input(test["input"]) for test in trial["tests"]]
    paths = {job.path for job in jobs if isinstance(job, OpenAIJob)}
    assert "/chat/completions" in paths
    assert all(any(route.match_path(path) is not None for route in ROUTES) for path in paths)
    assert any(isinstance(job, RawJob) for job in jobs)
    config = trial["config"]
    environ = {variable["key"]: variable["value"] for variable in config["env"]}
    assert read_settings(environ, REFERENCE_MACHINE).warnings == ()
    proposed = {preset["defaults"]["MODEL_NAME"] for preset in hub_listing["presets"]}
    assert environ["MODEL_NAME"] in proposed
    types = {pool.id: {kind.id for kind in pool.types} for pool in POOLS}
    pools = hub_listing["gpuIds"].split(",")
    assert any(config["gpuTypeId"] in types[pool] for pool in pools)
    same = ("gpuCount", "allowedCudaVersions")
    assert [config[name] for name in same] == [hub_listing[name] for name in same]
