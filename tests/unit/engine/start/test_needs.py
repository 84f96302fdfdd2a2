"""Which repositories engines need, by the settings, vLLM's arguments and models' configs."""

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engine.arguments import arguments
from support.hub.caches import NAME

from worker.engine.start.needs import (
    elsewhere,
    found_by_store,
    wanted_by_arguments,
    wanted_by_settings,
)
from worker.settings.sources import Given, gather
from worker.store import Found, Kind, Origin, Wanted

OTHER = "org/other"


def given(**environ: str) -> Given:
    return gather({"MODEL_NAME": NAME, **environ}, Path("/no such file"))


@pytest.mark.parametrize(
    ("wanted", "modelscope", "ours"),
    [
        (Wanted(NAME), "", True),
        (Wanted("org/name-gguf"), "", True),
        (Wanted("/models/x"), "", True),
        (Wanted("s3://bucket/x"), "", False),
        (Wanted("org/name:Q4_K_M"), "", False),
        (Wanted("org/name/x.gguf"), "", False),
        *((Wanted(NAME), value, False) for value in ("True", " 1 ")),
        *((Wanted(NAME), value, True) for value in ("False", "0")),
        *((Wanted(NAME, load_format=name), "", False) for name in ("tensorizer", "gguf", "GGUF")),
        (Wanted("/", load_format="gguf"), "", True),
    ],
)
def test_the_store_finds_repositories_of_its_hub_and_directories(
    wanted: Wanted, modelscope: str, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", modelscope)
    assert found_by_store(wanted) is ours


def test_every_repository_has_its_own_revision_and_all_go_to_one_directory() -> None:
    engine = arguments(
        tokenizer="org/tokenizer",
        download_dir="/downloads",
        load_format="pt",
        trust_remote_code=True,
        lora_modules=[Namespace(name="one", path="org/adapter")],
        speculative_config={"model": "org/draft", "revision": "v3"},
    )
    model = Wanted(NAME, "v1", "pt", Path("/downloads"), code=True)
    tokenizer = replace(model, model="org/tokenizer", load_format="dummy", kind=Kind.TOKENIZER)
    draft = replace(model, model="org/draft", revision="v3")
    adapter = Wanted("org/adapter", kind=Kind.ADAPTER)
    assert wanted_by_arguments(engine) == [model, tokenizer, adapter, draft]
    engine = engine.with_options(tokenizer_revision="v2", speculative_config={"model": "org/draft"})
    assert [wanted.revision for wanted in wanted_by_arguments(engine)] == ["v1", "v2", None, None]


def test_an_embedders_settings_are_named_as_such_and_no_tokenizer_is_wanted_without_need() -> None:
    engine = arguments("EMBEDDING_", tokenizer="org/tokenizer")
    settings = ["EMBEDDING_MODEL_NAME", "EMBEDDING_TOKENIZER_NAME"]
    assert [one.setting for one in wanted_by_arguments(engine)] == settings
    without = engine.with_options(skip_tokenizer_init=True)
    assert [one.setting for one in wanted_by_arguments(without)] == settings[:1]


# What is loaded besides the model:


@pytest.mark.parametrize("extra", ["--model-impl x", "--tokenizer-mode=x", "--model_loader x"])
def test_extra_arguments_change_nothing(extra: str) -> None:
    assert [wanted.model for wanted in wanted_by_settings(given(VLLM_EXTRA_ARGS=extra))] == [NAME]


@pytest.mark.parametrize(
    "extra", ["--model x", "--model=x", "--load_format=pt", "--download-dir /"]
)
def test_extra_arguments_of_a_model_are_left_to_vllms_parser(extra: str) -> None:
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
def test_no_draft_is_wanted_where_none_is_needed_or_named(config: dict[str, Any]) -> None:
    assert len(wanted_by_arguments(arguments(speculative_config=config))) == 1
    settings = given(SPECULATIVE_CONFIG=json.dumps(config), MODEL_REVISION="v1")
    assert len(wanted_by_settings(settings)) == 1


@pytest.mark.parametrize(
    "config",
    [
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


def named_in(
    folder: Path, wanted: Wanted, config: object, name: str = "config.json", **environ: str
) -> list[Wanted]:
    (folder / name).write_text(json.dumps(config))
    return [*elsewhere(given(**environ), Found(wanted, folder, Origin.VOLUME))]


SPECULATORS = {"speculators_config": {"verifier": {"name_or_path": OTHER}}}
ULTRAVOX = {"model_type": "ultravox", "audio_model_id": "org/audio", "text_model_id": "org/text"}
AUDIO, TEXT = (Wanted(name, by_name=True) for name in ("org/audio", "org/text"))
MODEL = Wanted(NAME, "v1", "safetensors", code=True)
THERE = Wanted(NAME, download_dir=Path("/downloads"))


@pytest.mark.parametrize(
    ("wanted", "config", "others"),
    [
        (MODEL, SPECULATORS, [replace(MODEL, model=OTHER, by_name=True)]),
        (replace(MODEL, setting="SPECULATIVE_CONFIG"), SPECULATORS, []),
        (Wanted(NAME, "v1"), ULTRAVOX, [AUDIO, TEXT]),
        (Wanted(NAME), {**ULTRAVOX, "text_model_id": None}, [AUDIO]),
        # Files without weights are wanted where libraries look for them, too.
        pytest.param(
            THERE,
            SPECULATORS,
            [
                replace(THERE, model=OTHER, by_name=True),
                Wanted(OTHER, load_format="dummy", by_name=True),
            ],
            id="download_dir",
        ),
        (Wanted(NAME), {}, []),
        (Wanted(NAME), [], []),
        (Wanted(NAME), {"audio_model_id": OTHER}, []),
        (Wanted(NAME), {"speculators_config": OTHER}, []),
        (Wanted(NAME), {"speculators_config": {"verifier": None}}, []),
        (Wanted(NAME), {"speculators_config": {"verifier": {"name_or_path": [OTHER]}}}, []),
        (Wanted(NAME), {"speculators_config": {"verifier": {"name_or_path": ""}}}, []),
    ],
)
def test_some_configurations_name_models_that_are_wanted_with_theirs(
    tmp_path: Path, wanted: Wanted, config: object, others: list[Wanted]
) -> None:
    assert named_in(tmp_path, wanted, config) == others


CODE = {"auto_map": {"AutoModel": "org/code--own.Model"}}


@pytest.mark.parametrize(
    ("setting", "file", "environ", "revisions"),
    [
        ("MODEL_NAME", "config.json", {"CODE_REVISION": "v5"}, [None, "v5"]),
        ("MODEL_NAME", "config.json", {"VLLM_EXTRA_ARGS": "--code-revision v5"}, [None, "v5"]),
        ("EMBEDDING_MODEL_NAME", "config.json", {"EMBEDDING_CODE_REVISION": "v5"}, [None, "v5"]),
        ("MODEL_NAME", "tokenizer_config.json", {"CODE_REVISION": "v5"}, [None]),
    ],
)
def test_code_of_a_model_is_wanted_at_its_own_revision_too(
    tmp_path: Path, setting: str, file: str, environ: dict[str, str], revisions: list[str | None]
) -> None:
    wanted = Wanted(NAME, code=True, setting=setting)
    named = named_in(tmp_path, wanted, CODE, file, **environ)
    assert [(one.model, one.revision) for one in named] == [("org/code", v) for v in revisions]


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
