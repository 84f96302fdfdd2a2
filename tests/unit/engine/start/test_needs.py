"""The repositories that engines need, by settings, vLLM's arguments and models' configurations."""

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.hub.caches import NAME
from support.settings import engine_arguments

from worker.engine.start.artifacts import (
    artifacts_in_arguments,
    artifacts_in_configs,
    artifacts_in_settings,
    is_searched_by_store,
)
from worker.settings.sources import RawSettings, gather_settings
from worker.store import Artifact, ArtifactKind, ArtifactLocation, Origin

OTHER = "org/other"


def raw_settings(**environ: str) -> RawSettings:
    return gather_settings({"MODEL_NAME": NAME, **environ}, Path("/no such file"))


@pytest.mark.parametrize(
    ("artifact", "modelscope", "is_found"),
    [
        (Artifact(NAME), "", True),
        (Artifact("org/name-gguf"), "", True),
        (Artifact("/models/x"), "", True),
        (Artifact("s3://bucket/x"), "", False),
        (Artifact("org/name:Q4_K_M"), "", False),
        (Artifact("org/name/x.gguf"), "", False),
        *((Artifact(NAME), value, False) for value in ("True", " 1 ")),
        *((Artifact(NAME), value, True) for value in ("False", "0")),
        *((Artifact(NAME, load_format=name), "", False) for name in ("tensorizer", "gguf", "GGUF")),
        (Artifact("/", load_format="gguf"), "", True),
    ],
)
def test_the_store_finds_repositories_of_its_hub_and_directories(
    artifact: Artifact, modelscope: str, is_found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", modelscope)
    assert is_searched_by_store(artifact) is is_found


def test_every_repository_has_its_own_revision_and_all_use_one_download_directory() -> None:
    engine = engine_arguments(
        tokenizer="org/tokenizer",
        download_dir="/downloads",
        load_format="pt",
        trust_remote_code=True,
        lora_modules=[Namespace(name="one", path="org/adapter")],
        speculative_config={"model": "org/draft", "revision": "v3"},
    )
    model = Artifact(NAME, "v1", "pt", Path("/downloads"), code=True)
    tokenizer = replace(
        model, model="org/tokenizer", load_format="dummy", kind=ArtifactKind.TOKENIZER
    )
    draft = replace(model, model="org/draft", revision="v3")
    adapter = Artifact("org/adapter", kind=ArtifactKind.ADAPTER)
    assert artifacts_in_arguments(engine) == [model, tokenizer, adapter, draft]
    engine = engine.with_options(tokenizer_revision="v2", speculative_config={"model": "org/draft"})
    assert [artifact.revision for artifact in artifacts_in_arguments(engine)] == [
        "v1",
        "v2",
        None,
        None,
    ]


def test_an_embedders_artifacts_name_its_settings_and_an_unused_tokenizer_is_not_needed() -> None:
    engine = engine_arguments("EMBEDDING_", tokenizer="org/tokenizer")
    settings = ["EMBEDDING_MODEL_NAME", "EMBEDDING_TOKENIZER_NAME"]
    assert [one.setting for one in artifacts_in_arguments(engine)] == settings
    without = engine.with_options(skip_tokenizer_init=True)
    assert [one.setting for one in artifacts_in_arguments(without)] == settings[:1]


# Artifacts that are loaded in addition to the model:


@pytest.mark.parametrize("extra", ["--model-impl x", "--tokenizer-mode=x", "--model_loader x"])
def test_other_extra_arguments_do_not_change_the_artifacts(extra: str) -> None:
    assert [
        artifact.model for artifact in artifacts_in_settings(raw_settings(VLLM_EXTRA_ARGS=extra))
    ] == [NAME]


@pytest.mark.parametrize(
    "extra", ["--model x", "--model=x", "--load_format=pt", "--download-dir /"]
)
def test_extra_arguments_about_the_model_are_left_to_vllms_parser(extra: str) -> None:
    assert artifacts_in_settings(raw_settings(VLLM_EXTRA_ARGS=extra)) == []


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
def test_a_tokenizer_is_needed_if_its_name_or_revision_differs_from_the_models(
    tokenizer: str | None, revision: str | None, expected: list[tuple[str, str, str]]
) -> None:
    engine = engine_arguments(tokenizer=tokenizer, tokenizer_revision=revision)
    model, *others = artifacts_in_arguments(engine)
    assert model.kind is ArtifactKind.MODEL
    assert [
        (artifact.model, artifact.revision, artifact.setting) for artifact in others
    ] == expected
    assert {artifact.kind for artifact in others} <= {ArtifactKind.TOKENIZER}


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
def test_a_speculative_configuration_without_another_model_needs_no_draft(
    config: dict[str, Any],
) -> None:
    assert len(artifacts_in_arguments(engine_arguments(speculative_config=config))) == 1
    settings = raw_settings(SPECULATIVE_CONFIG=json.dumps(config), MODEL_REVISION="v1")
    assert len(artifacts_in_settings(settings)) == 1


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
def test_a_speculative_configuration_with_another_model_needs_a_draft(
    config: dict[str, Any],
) -> None:
    draft = artifacts_in_arguments(engine_arguments(speculative_config=config))[1]
    assert (draft.model, draft.revision) == (config["model"], config.get("revision"))
    assert draft.setting == "SPECULATIVE_CONFIG"


# Artifacts that a configuration refers to:


def referenced_artifacts(
    folder: Path, artifact: Artifact, config: object, name: str = "config.json", **environ: str
) -> list[Artifact]:
    (folder / name).write_text(json.dumps(config))
    return [
        *artifacts_in_configs(
            raw_settings(**environ), ArtifactLocation(artifact, folder, Origin.VOLUME)
        )
    ]


SPECULATORS = {"speculators_config": {"verifier": {"name_or_path": OTHER}}}
ULTRAVOX = {"model_type": "ultravox", "audio_model_id": "org/audio", "text_model_id": "org/text"}
AUDIO, TEXT = (Artifact(name, loaded_by_name=True) for name in ("org/audio", "org/text"))
MODEL = Artifact(NAME, "v1", "safetensors", code=True)
DOWNLOADED = Artifact(NAME, download_dir=Path("/downloads"))


@pytest.mark.parametrize(
    ("artifact", "config", "others"),
    [
        (MODEL, SPECULATORS, [replace(MODEL, model=OTHER, loaded_by_name=True)]),
        (replace(MODEL, setting="SPECULATIVE_CONFIG"), SPECULATORS, []),
        (Artifact(NAME, "v1"), ULTRAVOX, [AUDIO, TEXT]),
        (Artifact(NAME), {**ULTRAVOX, "text_model_id": None}, [AUDIO]),
        # Files other than weights are also needed where the libraries look for them.
        pytest.param(
            DOWNLOADED,
            SPECULATORS,
            [
                replace(DOWNLOADED, model=OTHER, loaded_by_name=True),
                Artifact(OTHER, load_format="dummy", loaded_by_name=True),
            ],
            id="download_dir",
        ),
        (Artifact(NAME), {}, []),
        (Artifact(NAME), [], []),
        (Artifact(NAME), {"audio_model_id": OTHER}, []),
        (Artifact(NAME), {"speculators_config": OTHER}, []),
        (Artifact(NAME), {"speculators_config": {"verifier": None}}, []),
        (Artifact(NAME), {"speculators_config": {"verifier": {"name_or_path": [OTHER]}}}, []),
        (Artifact(NAME), {"speculators_config": {"verifier": {"name_or_path": ""}}}, []),
    ],
)
def test_models_that_a_configuration_refers_to_are_needed_too(
    tmp_path: Path, artifact: Artifact, config: object, others: list[Artifact]
) -> None:
    assert referenced_artifacts(tmp_path, artifact, config) == others


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
def test_a_models_code_is_needed_at_its_own_revision_too(
    tmp_path: Path, setting: str, file: str, environ: dict[str, str], revisions: list[str | None]
) -> None:
    artifact = Artifact(NAME, code=True, setting=setting)
    artifacts = referenced_artifacts(tmp_path, artifact, CODE, file, **environ)
    assert [(one.model, one.revision) for one in artifacts] == [
        ("org/code", revision) for revision in revisions
    ]


# Artifacts in messages:


@pytest.mark.parametrize(
    ("artifact", "text"),
    [
        (Artifact("a/b"), "a/b"),
        (Artifact("a/b", "v1"), "a/b@v1"),
        (Artifact("a/b", "v\n1"), r"'a/b@v\n1'"),
        (Artifact("a\r"), r"'a\r'"),
        (Artifact("a\udc80"), r"'a\udc80'"),
    ],
)
def test_an_artifact_is_one_line_in_messages(artifact: Artifact, text: str) -> None:
    assert str(artifact) == text
