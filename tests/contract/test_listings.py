"""The generated files: up to date, in the platform's formats, and accepted by the worker."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import listings
import pytest
from forms import ASKED_ELSEWHERE, PROPOSED
from listed import WORKERS, Catalogue
from pydantic import BaseModel, ConfigDict, Field, model_validator
from support.settings import read_settings

from worker.settings import Settings
from worker.settings.names import ALIASES
from worker.settings.values import text

Name = Annotated[str, Field(pattern="^[A-Z][A-Z0-9_]*$")]
Text = Annotated[str, Field(min_length=1)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Choice(Strict):
    value: str
    label: Text


class Category(Strict):
    title: Text
    settings: list[Name]


class Version(Strict):
    image_name: Text = Field(alias="imageName")
    minimum_cuda_version: str = Field(alias="minimumCudaVersion", pattern=r"^\d+\.\d+$")
    categories: list[Category]


class Asked(Strict):
    env_var_name: Name
    value: str | bool
    title: Text
    description: Text
    required: bool
    type: Literal["text", "number", "select", "toggle"]
    options: list[Choice] | None = None

    @model_validator(mode="after")
    def fits(self) -> Self:
        assert (self.type == "toggle") == isinstance(self.value, bool)
        assert (self.type == "select") == (self.options is not None)
        assert self.type != "number" or self.value == "" or float(self.value) >= 0
        assert not self.options or self.value in {option.value for option in self.options}
        return self


class Console(Strict):
    versions: dict[str, Version]
    asked: dict[Name, Asked] = Field(alias="schema")


class Input(Strict):
    name: Text
    type: Literal["string", "number", "boolean", "huggingface"]
    description: Text
    default: str | int | float | bool | None = None
    required: bool = False
    advanced: bool = False
    options: list[Choice] | None = None
    true_value: str | None = Field(None, alias="trueValue")
    false_value: str | None = Field(None, alias="falseValue")

    @model_validator(mode="after")
    def fits(self) -> Self:
        assert (self.type == "boolean") == isinstance(self.default, bool)
        assert (self.type == "boolean") == (self.true_value is not None)
        assert (self.true_value is None) == (self.false_value is None)
        assert self.type == "string" or self.options is None
        return self


class Variable(Strict):
    key: Name
    input: Input


class Preset(Strict):
    name: Text
    defaults: dict[Name, str | int | float | bool]


class Listing(Strict):
    runs_on: Literal["GPU"] = Field(alias="runsOn")
    disk: int = Field(alias="containerDiskInGb", ge=1)
    gpus: int = Field(alias="gpuCount", ge=1)
    gpu_ids: Text = Field(alias="gpuIds")
    cuda: list[Annotated[str, Field(pattern=r"^\d+\.\d+$")]] = Field(alias="allowedCudaVersions")
    presets: list[Preset]
    env: list[Variable]


class Hub(Strict):
    title: Text
    description: Text
    type: Literal["serverless"]
    category: Literal["audio", "embedding", "language", "video", "image"]
    config: Listing


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return listings.listings()


@pytest.fixture(scope="module")
def console(made: dict[str, str]) -> Console:
    return Console.model_validate_json(made["worker-config.json"])


@pytest.fixture(scope="module")
def hub(made: dict[str, str]) -> Hub:
    return Hub.model_validate_json(made[".runpod/hub.json"])


def test_the_committed_files_are_up_to_date(made: dict[str, str]) -> None:
    assert listings.differing(made) == [], "run: make listings"


@pytest.mark.slow
def test_a_check_names_the_files_that_are_missing_or_differ_and_writes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listings, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    listings.main([])
    listings.main(["--check"])
    (tmp_path / "worker-config.json").write_text("{}")
    (tmp_path / ".runpod" / "hub.json").unlink()
    with pytest.raises(SystemExit) as ended:
        listings.main(["--check"])
    message = "not as the code has it: worker-config.json, .runpod/hub.json; run: make listings"
    assert ended.value.code == message
    assert (tmp_path / "worker-config.json").read_text() == "{}"


# The platform's forms:


def test_the_listing_for_load_balancing_differs_by_its_type_only(made: dict[str, str]) -> None:
    queue, balanced = (
        json.loads(made[name]) for name in (".runpod/hub.json", ".runpod/load-balancing/hub.json")
    )
    assert balanced["config"].pop("endpointType") == "LB"
    assert balanced == queue


def test_the_consoles_form_asks_for_exactly_the_settings_of_its_categories(
    console: Console,
) -> None:
    (version,) = console.versions.values()
    named = [name for category in version.categories for name in category.settings]
    assert len(named) == len(set(named))
    assert set(named) == console.asked.keys()
    assert all(name == asked.env_var_name for name, asked in console.asked.items())
    assert not ASKED_ELSEWHERE & console.asked.keys()


def test_both_forms_ask_for_the_same_settings(console: Console, hub: Hub) -> None:
    asked = [variable.key for variable in hub.config.env]
    assert len(asked) == len(set(asked))
    assert set(asked) - ASKED_ELSEWHERE == console.asked.keys()
    assert 30 <= len(asked) <= 45


def test_every_name_in_the_forms_is_a_setting(hub: Hub) -> None:
    names = {variable.key for variable in hub.config.env}
    names |= {name for preset in hub.config.presets for name in preset.defaults}
    own = {name.upper() for name in Settings.model_fields}
    assert names - own - ALIASES.keys() - Catalogue().options.names == set()


def test_an_unchanged_form_changes_no_more_than_it_proposes(console: Console, hub: Hub) -> None:
    model = {"MODEL_NAME": "org/model"}
    bare = read_settings(model | PROPOSED, WORKERS)
    shown: dict[str, Any] = {name: asked.value for name, asked in console.asked.items()}
    asked_by_hub = {field.key: field.input.default for field in hub.config.env}
    for form in (shown, asked_by_hub):
        filled = {name: text(value) for name, value in form.items()} | model
        sent = read_settings(filled, WORKERS)
        assert sent.settings.model_dump() == bare.settings.model_dump()
        assert sent.arguments.vllm == bare.arguments.vllm
        assert sent.warnings == ()


def test_forms_and_presets_leave_jobs_to_other_workers(console: Console, hub: Hub) -> None:
    asked_by_hub = {field.key: field.input for field in hub.config.env}
    for field in (console.asked["MAX_CONCURRENCY"], asked_by_hub["MAX_CONCURRENCY"]):
        assert field.description.endswith("Default: 300.")
    assert console.asked["MAX_CONCURRENCY"].value == "auto"
    assert asked_by_hub["MAX_CONCURRENCY"].default == "auto"
    assert {preset.defaults["MAX_CONCURRENCY"] for preset in hub.config.presets} == {"auto"}


def test_a_form_leaves_an_embedding_model_its_share(console: Console) -> None:
    shown = {name: text(asked.value) for name, asked in console.asked.items()}
    models = {"MODEL_NAME": "org/model", "EMBEDDING_MODEL_NAME": "org/embedder"}
    assert read_settings(shown | models, WORKERS).arguments.vllm.gpu_memory_utilization == 0.85


def test_every_choice_of_a_form_is_accepted(console: Console) -> None:
    catalogue = Catalogue()
    for name, asked in console.asked.items():
        for option in asked.options or ():
            assert not option.value or catalogue.mistakes(name, option.value) == []


def test_every_preset_starts_without_a_warning(hub: Hub) -> None:
    for preset in hub.config.presets:
        environ = {name: text(value) for name, value in preset.defaults.items()}
        assert read_settings(environ, WORKERS).warnings == (), preset.name
