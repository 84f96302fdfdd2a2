"""The generated files: up to date, in the platform's formats, and accepted by the worker."""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import listings
import pytest
from forms import ASKED_ELSEWHERE, PROPOSED
from listed import WORKERS, Catalogue
from pydantic import BaseModel, ConfigDict, Field, model_validator
from support.settings import read_settings
from table import ROWS

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


def test_a_check_names_the_files_that_are_missing_or_differ_and_writes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listings, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    listings.main([])
    (tmp_path / "worker-config.json").write_text("{}")
    (tmp_path / ".runpod" / "hub.json").unlink()
    with pytest.raises(SystemExit) as ended:
        listings.main(["--check"])
    message = "not as the code has it: worker-config.json, .runpod/hub.json; run: make listings"
    assert ended.value.code == message
    assert (tmp_path / "worker-config.json").read_text() == "{}"


def test_a_check_right_after_writing_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(listings, "ROOT", tmp_path)
    for words in ([], ["--check"]):
        listings.main(words)
    count = len(listings.listings())
    told = [f"{count} of {count} files changed", f"0 of {count} files changed"]
    # vLLM's log may stand between them.
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if line.endswith("files changed")] == told


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


# The pages:


def rows_of(page: str) -> dict[str, list[str]]:
    """Read a page's tables: the other cells of a row, by its first one; the first table wins."""
    rows = [re.split(r" (?<!\\)\| ", line[2:-2]) for line in page.splitlines() if line[:3] == "| `"]
    return {cells[0].strip("`"): cells[1:] for cells in reversed(rows)}


def test_the_page_has_every_setting_with_the_default_that_the_code_has(
    made: dict[str, str],
) -> None:
    rows = rows_of(made["docs/settings.md"])
    fields = {name.upper(): field for name, field in Settings.model_fields.items()}
    for name, field in fields.items():
        default = "" if field.is_required() else text(field.default)
        assert rows[name][1].strip("`") == default, name
    bare = vars(read_settings({"MODEL_NAME": "org/model"}, WORKERS).arguments.vllm)
    assert rows["GPU_MEMORY_UTILIZATION"][1] == f"`{bare['gpu_memory_utilization']}`"
    assert rows["TENSOR_PARALLEL_SIZE"][1] == ""  # as many as there are GPUs
    options = Catalogue().options
    assert rows["STRUCTURED_OUTPUTS_CONFIG"][1] == '`{"backend": "xgrammar"}`'
    assert rows["MAX_MODEL_LEN"][1] == "`auto`"
    shares = {"GPU_MEMORY_UTILIZATION", "MAX_MODEL_LEN", "TENSOR_PARALLEL_SIZE"}
    chosen = {*shares, "STRUCTURED_OUTPUTS_CONFIG"}
    for name in options.names - chosen - fields.keys() - ALIASES.keys():
        if name in rows and len(rows[name]) > 1:
            assert rows[name][1].strip("`") == options[name].default, name


def test_the_page_names_every_option_of_vllms(made: dict[str, str]) -> None:
    options = Catalogue().options
    assert options.names - rows_of(made["docs/settings.md"]).keys() == set()


def test_every_row_of_the_table_is_on_the_page(made: dict[str, str]) -> None:
    rows = rows_of(made["docs/settings.md"])
    for setting in ROWS:
        assert setting.meaning.replace("|", "\\|") in " | ".join(rows[setting.name])


def test_no_page_names_this_machine(made: dict[str, str]) -> None:
    for content in made.values():
        assert str(Path.home()) not in content
        assert str(listings.ROOT) not in content
