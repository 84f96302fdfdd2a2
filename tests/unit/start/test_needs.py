"""Which repositories engines need, by the settings, vLLM's arguments and models' configs."""

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engine.arguments import arguments
from support.hub.caches import NAME

from worker.settings.sources import Given, gather
from worker.start.needs import (
    elsewhere,
    found_by_store,
    wanted_by_arguments,
    wanted_by_settings,
)
from worker.store import Found, Kind, Origin, Wanted

OTHER = "org/other"


def given(**environ: str) -> Given:
    return gather({"MODEL_NAME": NAME, **environ}, Path("/no such file"))


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("org/name", True),
        ("/models/x", True),
        ("s3://bucket/x", False),
        ("org/name:Q4_K_M", False),
        ("org/name/x.gguf", False),
        ("org/name-gguf", True),
    ],
)
def test_the_store_finds_repositories_and_directories(name: str, ours: bool) -> None:
    assert found_by_store(Wanted(name)) is ours


@pytest.mark.parametrize(
    ("value", "ours"),
    [("True", False), (" 1 ", False), ("False", True), ("0", True), ("", True)],
)
def test_another_hub_is_vllms_own(value: str, ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", value)
    assert found_by_store(Wanted(NAME)) is ours


@pytest.mark.parametrize("load_format", ["tensorizer", "gguf", "GGUF"])
def test_names_that_only_vllm_finds_are_left_to_it(load_format: str, tmp_path: Path) -> None:
    assert not found_by_store(Wanted(NAME, load_format=load_format))
    assert found_by_store(Wanted(str(tmp_path), load_format=load_format))


def test_every_repository_has_its_own_revision_and_all_go_to_one_directory() -> None:
    engine = arguments(
        tokenizer="org/tokenizer",
        download_dir="/downloads",
        load_format="pt",
        trust_remote_code=True,
        lora_modules=[Namespace(name="one", path="org/adapter")],
        speculative_config={"model": "org/draft", "revision": "v3"},
    )
    there = Path("/downloads")
    model, draft = (
        Wanted(NAME, "v1", "pt", there, code=True),
        Wanted("org/draft", "v3", "pt", there),
    )
    tokenizer = Wanted("org/tokenizer", "v1", "dummy", there, Kind.TOKENIZER, code=True)
    adapter = Wanted("org/adapter", kind=Kind.ADAPTER)
    assert wanted_by_arguments(engine) == [model, tokenizer, adapter, replace(draft, code=True)]
    engine = engine.with_options(tokenizer_revision="v2", speculative_config={"model": "org/draft"})
    assert [wanted.revision for wanted in wanted_by_arguments(engine)] == ["v1", "v2", None, None]


def test_a_draft_that_is_the_model_is_wanted_once() -> None:
    assert len(wanted_by_arguments(arguments(speculative_config={"model": NAME}))) == 1


def test_an_engine_that_needs_no_tokenizer_gets_none() -> None:
    engine = arguments(tokenizer="org/tokenizer", skip_tokenizer_init=True)
    assert [wanted.kind for wanted in wanted_by_arguments(engine)] == [Kind.MODEL]


def test_the_settings_of_an_embedder_are_named_as_such() -> None:
    engine = arguments("EMBEDDING_", tokenizer="org/tokenizer")
    assert [wanted.setting for wanted in wanted_by_arguments(engine)] == [
        "EMBEDDING_MODEL_NAME",
        "EMBEDDING_TOKENIZER_NAME",
    ]


# What is loaded besides the model:


@pytest.mark.parametrize(
    "extra", ["--model-impl x", "--tokenizer-mode=x", "--model_loader_extra x"]
)
def test_extra_arguments_that_name_no_model_change_nothing(extra: str) -> None:
    assert [wanted.model for wanted in wanted_by_settings(given(VLLM_EXTRA_ARGS=extra))] == [NAME]


@pytest.mark.parametrize(
    "extra", ["--model x", "--model=x", "--load_format=pt", "--download-dir /"]
)
def test_extra_arguments_that_name_a_model_are_left_to_vllms_parser(extra: str) -> None:
    assert wanted_by_settings(given(VLLM_EXTRA_ARGS=extra)) == []


@pytest.mark.parametrize(
    ("tokenizer", "revision", "expected"),
    [
        (None, None, []),
        (None, "v1", []),
        (NAME, "v1", []),
        (None, "v2", [(NAME, "v2", "TOKENIZER_REVISION")]),
        (NAME, "v2", [(NAME, "v2", "TOKENIZER_REVISION")]),
        (OTHER, None, [(OTHER, "v1", "TOKENIZER_NAME")]),
    ],
)
def test_a_tokenizer_is_wanted_where_it_is_not_the_models_or_of_another_revision(
    tokenizer: str | None, revision: str | None, expected: list[tuple[str, str, str]]
) -> None:
    engine = arguments(tokenizer=tokenizer, tokenizer_revision=revision)
    model, *others = wanted_by_arguments(engine)
    assert model.kind is Kind.MODEL
    assert [(wanted.model, wanted.revision, wanted.setting) for wanted in others] == expected
    assert {wanted.kind for wanted in others} <= {Kind.TOKENIZER}


@pytest.mark.parametrize(
    "config",
    [
        {"method": "ngram"},
        {"method": "ngram", "model": "org/draft"},
        {"method": "custom_class", "model": "package.module.Class"},
        {"method": "extract_hidden_states", "model": "x"},
        {"model": "ngram"},
        {"model": "[ngram]"},
        {"model": "package.module.Class"},
        {"model": NAME, "method": "mtp"},
        {"model": NAME, "revision": "v1"},
        {"model": ""},
        {"model": ["org/draft"]},
        {"model": {}, "method": []},
        {"model": "org/draft", "revision": 5},
    ],
    ids=str,
)
def test_no_draft_is_wanted_where_the_method_needs_none_or_it_is_written_wrong(
    config: dict[str, Any],
) -> None:
    assert len(wanted_by_arguments(arguments(speculative_config=config))) == 1
    settings = given(SPECULATIVE_CONFIG=json.dumps(config), MODEL_REVISION="v1")
    assert len(wanted_by_settings(settings)) == 1


@pytest.mark.parametrize(
    "config",
    [
        {"model": "org/draft"},
        {"model": "gpt2"},
        {"model": "draft-1.5"},
        {"model": "org/pkg.Class", "method": "eagle3"},
        {"model": "some.name", "method": "draft_model"},
        {"model": NAME, "revision": "v2"},
    ],
    ids=str,
)
def test_a_draft_is_wanted_where_it_is_another_model(config: dict[str, Any]) -> None:
    draft = wanted_by_arguments(arguments(speculative_config=config))[1]
    assert (draft.model, draft.revision) == (config["model"], config.get("revision"))
    assert draft.setting == "SPECULATIVE_CONFIG"


# What a configuration refers to:


def configured(folder: Path, wanted: Wanted, config: object, name: str = "config.json") -> Found:
    (folder / name).write_text(json.dumps(config))
    return Found(wanted, folder, Origin.VOLUME)


SPECULATORS = {"speculators_config": {"verifier": {"name_or_path": OTHER}}}
ULTRAVOX = {"model_type": "ultravox", "audio_model_id": "org/audio", "text_model_id": "org/text"}


def test_a_speculators_model_wants_the_one_that_it_was_made_for(tmp_path: Path) -> None:
    wanted = Wanted(NAME, "v1", "safetensors", code=True)
    assert [*elsewhere(configured(tmp_path, wanted, SPECULATORS), given())] == [
        replace(wanted, model=OTHER, by_name=True)
    ]
    draft = replace(wanted, setting="SPECULATIVE_CONFIG")
    assert [*elsewhere(configured(tmp_path, draft, SPECULATORS), given())] == []


def test_an_ultravox_model_wants_those_that_it_joins(tmp_path: Path) -> None:
    found = configured(tmp_path, Wanted(NAME, "v1"), ULTRAVOX)
    assert [*elsewhere(found, given())] == [
        Wanted(name, by_name=True) for name in ("org/audio", "org/text")
    ]
    found = configured(tmp_path, Wanted(NAME), {**ULTRAVOX, "text_model_id": None})
    assert [*elsewhere(found, given())] == [Wanted("org/audio", by_name=True)]


def test_files_without_weights_are_wanted_where_libraries_look_for_them(tmp_path: Path) -> None:
    wanted = Wanted(NAME, download_dir=Path("/downloads"))
    assert [*elsewhere(configured(tmp_path, wanted, SPECULATORS), given())] == [
        replace(wanted, model=OTHER, by_name=True),
        Wanted(OTHER, load_format="dummy", by_name=True),
    ]


@pytest.mark.parametrize(
    "config",
    [
        {},
        [],
        {"audio_model_id": OTHER},
        {"speculators_config": OTHER},
        {"speculators_config": {"verifier": None}},
        {"speculators_config": {"verifier": {"name_or_path": [OTHER]}}},
        {"speculators_config": {"verifier": {"name_or_path": ""}}},
    ],
    ids=str,
)
def test_most_configurations_refer_to_no_model(tmp_path: Path, config: object) -> None:
    assert [*elsewhere(configured(tmp_path, Wanted(NAME), config), given())] == []


CODE = {"auto_map": {"AutoModel": "org/code--own.Model"}}


@pytest.mark.parametrize(
    ("setting", "environ"),
    [
        ("MODEL_NAME", {"CODE_REVISION": "v5"}),
        ("MODEL_NAME", {"VLLM_EXTRA_ARGS": "--code-revision v5"}),
        ("EMBEDDING_MODEL_NAME", {"EMBEDDING_CODE_REVISION": "v5"}),
    ],
)
def test_code_is_wanted_at_its_own_revision_too(
    tmp_path: Path, setting: str, environ: dict[str, str]
) -> None:
    found = configured(tmp_path, Wanted(NAME, code=True, setting=setting), CODE)
    revisions = [wanted.revision for wanted in elsewhere(found, given(**environ))]
    assert revisions == [None, "v5"]


def test_the_code_of_a_tokenizer_has_no_revision_of_its_own(tmp_path: Path) -> None:
    found = configured(tmp_path, Wanted(NAME, code=True), CODE, "tokenizer_config.json")
    assert [wanted.revision for wanted in elsewhere(found, given(CODE_REVISION="v5"))] == [None]


# In messages:


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (Wanted("a/b"), "a/b"),
        (Wanted("a/b", "v1"), "a/b@v1"),
        (Wanted("a/b", "v\n1"), r"'a/b@v\n1'"),
        (Wanted("a\r"), r"'a\r'"),
        (Wanted("a\udc80"), r"'a\udc80'"),
    ],
)
def test_a_name_stays_in_one_line(wanted: Wanted, text: str) -> None:
    assert str(wanted) == text
