"""The artifacts that engines need are known from settings, arguments and configs, and are found.

Then the libraries go offline.
"""

import json
import os
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.hub.caches import NAME, fill_cache, isolate_hub_library, make_model
from support.hub.server import hub
from support.metrics import watch_metrics
from support.settings import engine_arguments, start_on

from worker.engine.arguments import EngineArguments
from worker.engine.machine import Machine
from worker.engine.start import Start
from worker.engine.start.artifacts import (
    EngineArtifacts,
    artifacts_in_arguments,
    artifacts_in_configs,
    artifacts_in_settings,
    is_searched_by_store,
)
from worker.engine.start.steps import with_artifact_directories
from worker.errors import StartFailed
from worker.settings.sources import RawSettings, gather_settings
from worker.store import Artifact, ArtifactKind, ArtifactLocation, ModelUnavailable, Origin, Reason

OTHER = "org/other"
OFFLINE = "HF_HUB_OFFLINE"
CODE = {"model_type": "own", "auto_map": {"AutoModel": "org/code--own.Model"}}


@pytest.fixture(autouse=True)
def clear_environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate_hub_library(tmp_path, monkeypatch)
    for name in ("HF_HOME", "HF_HUB_CACHE", OFFLINE, "TRANSFORMERS_OFFLINE"):
        os.environ.pop(name, None)


@pytest.fixture
def model_directory(tmp_path: Path) -> Path:
    return make_model(tmp_path / "source")


@pytest.fixture
def hub_cache(tmp_path: Path) -> Path:
    """The cache on the volume."""
    return tmp_path / "huggingface-cache" / "hub"


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


# The search:


def settings(volume: Path, **environ: str) -> RawSettings:
    """Return the settings of a worker with its own volume, after exporting their variables."""
    raw = gather_settings({"BASE_PATH": str(volume), **environ}, volume / "no such file")
    Start.read(raw)
    return raw


def make_artifacts(volume: Path, model_name: object = NAME, **environ: str) -> EngineArtifacts:
    return EngineArtifacts(settings(volume, **{"MODEL_NAME": str(model_name), **environ}))


def test_the_cache_is_on_the_volume(tmp_path: Path, model_directory: Path, hub_cache: Path) -> None:
    snapshot = fill_cache(hub_cache, model_directory)
    (found,) = make_artifacts(tmp_path).fetch_artifacts_in_settings()
    assert (found.directory, found.origin) == (snapshot, Origin.VOLUME)
    assert os.environ["HF_HOME"] == str(hub_cache.parent)


def test_a_directory_is_found_although_other_settings_are_wrong(
    tmp_path: Path, model_directory: Path
) -> None:
    wrong = make_artifacts(tmp_path, model_directory, MAX_CONCURRENCY="0", SEED="x")
    (found,) = wrong.locate_artifacts().values()
    assert (found.directory, found.origin) == (model_directory, Origin.DIRECTORY)


def test_a_repository_in_two_settings_is_resolved_once_and_others_can_be_added(
    tmp_path: Path, model_directory: Path
) -> None:
    name = str(model_directory)
    both = settings(tmp_path, MODEL_NAME=name, EMBEDDING_MODEL_NAME=name)
    assert len(artifacts_in_settings(both)) == 2
    assert len(EngineArtifacts(both).fetch_artifacts_in_settings()) == 1
    other = Artifact(str(make_model(tmp_path / "other")))
    found = make_artifacts(tmp_path, name).locate_artifacts([other, Artifact("s3://bucket/model")])
    assert [repository.directory.name for repository in found.values()] == ["source", "other"]


def test_repositories_that_a_model_refers_to_are_found_and_its_code_if_trusted(
    tmp_path: Path, model_directory: Path, hub_cache: Path
) -> None:
    speculators = {"speculators_config": {"verifier": {"name_or_path": "org/verifier"}}}
    (model_directory / "config.json").write_text(json.dumps({"model_type": "own", **speculators}))
    verifier = make_model(tmp_path / "verifier")
    (verifier / "config.json").write_text(json.dumps(CODE))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "own.py").write_text("")
    directories = [model_directory, fill_cache(hub_cache, verifier, name="org/verifier")]
    assert [
        one.directory
        for one in make_artifacts(tmp_path, model_directory).fetch_artifacts_in_settings()
    ] == directories
    directories.append(fill_cache(hub_cache, tmp_path / "code", name="org/code"))
    found = make_artifacts(
        tmp_path, model_directory, TRUST_REMOTE_CODE="1"
    ).fetch_artifacts_in_settings()
    assert [repository.directory for repository in found] == directories
    assert found[2].artifact.kind is ArtifactKind.CODE


# Offline mode:


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"VLLM_EXTRA_ARGS": "--model-impl transformers --tokenizer-mode=slow"},
        {"VLLM_EXTRA_ARGS": "--generation-config vllm"},
        {"GENERATION_CONFIG": "auto", "EMBEDDING_GENERATION_CONFIG": "vllm"},
        {"GENERATION_CONFIG": "/", "HF_CONFIG_PATH": "/"},
    ],
)
def test_the_libraries_go_offline_if_the_settings_need_nothing_from_the_hub(
    tmp_path: Path, model_directory: Path, environ: dict[str, str]
) -> None:
    make_artifacts(tmp_path, model_directory, **environ).go_offline_if_possible()
    assert os.environ[OFFLINE] == "1"
    # The hub's library reads TRANSFORMERS_OFFLINE only where HF_HUB_OFFLINE is unset.
    assert "TRANSFORMERS_OFFLINE" not in os.environ


def test_the_operators_setting_overrides_the_offline_mode(
    tmp_path: Path, model_directory: Path
) -> None:
    os.environ[OFFLINE] = "0"
    make_artifacts(tmp_path, model_directory).go_offline_if_possible()
    assert os.environ[OFFLINE] == "0"


def test_the_store_still_downloads_in_offline_mode(tmp_path: Path, model_directory: Path) -> None:
    with hub() as running:
        os.environ["HF_ENDPOINT"] = running.endpoint
        offline = make_artifacts(tmp_path, model_directory)
        offline.go_offline_if_possible()
        with pytest.raises(ModelUnavailable) as raised:
            offline.locate_artifacts([Artifact("org/none")])
    assert raised.value.reason is Reason.MISSING


@pytest.mark.parametrize(
    "environ",
    [
        {"VLLM_EXTRA_ARGS": "--model org/other"},
        {"VLLM_EXTRA_ARGS": "--tokenizer=org/other"},
        {"VLLM_EXTRA_ARGS": "--tokenizer_revision v2"},
        {"VLLM_EXTRA_ARGS": "--hf-config-path org/other"},
        {"VLLM_EXTRA_ARGS": "--generation-config=org/other"},
        {"HF_CONFIG_PATH": "org/other"},
        {"EMBEDDING_HF_CONFIG_PATH": "org/other"},
        {"GENERATION_CONFIG": "org/other"},
        {"EMBEDDING_GENERATION_CONFIG": "org/other"},
        {"VLLM_LORA_RESOLVER_HF_REPO_LIST": "org/other"},
        {"TOKENIZER_NAME": "s3://bucket/model"},
        {"EMBEDDING_MODEL_NAME": "org/name:Q4_K_M"},
        {"MODEL_NAME": ""},
    ],
)
def test_the_libraries_stay_online_for_artifacts_that_only_vllm_finds(
    tmp_path: Path, model_directory: Path, environ: dict[str, str]
) -> None:
    online = make_artifacts(tmp_path, model_directory, **environ)
    online.go_offline_if_possible()
    online.close()
    assert OFFLINE not in os.environ


@pytest.mark.parametrize(
    ("model_name", "extra"),
    [
        (NAME, "--model a/b"),
        ("a/b.gguf", ""),
        ("/", "--enable-lora --lora-modules a=a/b"),
        ("/", "--speculative-config.model a/b"),
        ("/", "-sc '{}'"),
    ],
)
def test_prefetching_fails_for_artifacts_that_only_vllm_finds(
    tmp_path: Path, model_name: str, extra: str
) -> None:
    with pytest.raises(StartFailed, match="Only vLLM itself can find"):
        make_artifacts(tmp_path, model_name, VLLM_EXTRA_ARGS=extra).fetch_artifacts_in_settings()


# Directories in vLLM's arguments:


def locate(artifact: Artifact, origin: Origin = Origin.VOLUME) -> ArtifactLocation:
    return ArtifactLocation(
        artifact, Path("/cache") / artifact.model / str(artifact.kind), origin, "c" * 40
    )


def insert_directories(
    engine: EngineArguments, found: dict[Artifact, ArtifactLocation]
) -> EngineArguments:
    start = replace(start_on(Machine(cpu=True)), locations=found)
    return with_artifact_directories(engine, start)


def resolve_arguments(engine: EngineArguments) -> Namespace:
    """Replace all names by directories; return vLLM's arguments."""
    return insert_directories(
        engine, {one: locate(one) for one in artifacts_in_arguments(engine)}
    ).vllm_args


def test_directories_replace_names() -> None:
    adapter = Namespace(name="one", path="org/adapter")
    engine = engine_arguments(
        tokenizer="org/tokenizer",
        lora_modules=[adapter, Namespace(name="two", path="/adapters/two")],
        speculative_config={"model": "org/draft", "num_speculative_tokens": 3},
    )
    artifacts = artifacts_in_arguments(engine)
    own_directories = {
        one: locate(one, Origin.DIRECTORY) for one in artifacts if one.model == "/adapters/two"
    }
    changed = insert_directories(engine, {one: locate(one) for one in artifacts} | own_directories)
    vllm = changed.vllm_args
    assert vllm.model == "/cache/org/name/model"
    assert vllm.tokenizer == "/cache/org/tokenizer/tokenizer"
    paths = ["/cache/org/adapter/adapter", "/adapters/two"]
    assert [module.path for module in vllm.lora_modules] == paths
    draft = {"model": "/cache/org/draft/model", "num_speculative_tokens": 3}
    assert vllm.speculative_config == draft
    assert (changed.origin, changed.commit) == (Origin.VOLUME, "c" * 40)
    assert (changed.model_name, engine.vllm_args.model, adapter.path) == (NAME, NAME, "org/adapter")


def test_a_tokenizer_or_draft_that_is_the_model_itself_gets_the_models_directory() -> None:
    place = "/cache/org/name/model"
    engine = engine_arguments(tokenizer=NAME, speculative_config={"model": NAME, "method": "mtp"})
    assert len(artifacts_in_arguments(engine)) == 1
    vllm = resolve_arguments(engine)
    assert (vllm.model, vllm.tokenizer) == (place, place)
    assert vllm.speculative_config == {"model": place, "method": "mtp"}
    # The model's tokenizer at another revision has a directory of its own.
    vllm = resolve_arguments(engine_arguments(tokenizer_revision="v2"))
    assert (vllm.model, vllm.tokenizer) == (place, "/cache/org/name/tokenizer")


def test_a_model_in_two_settings_is_replaced_in_both() -> None:
    main = engine_arguments(revision=None, speculative_config={"model": "org/small"})
    second = engine_arguments("EMBEDDING_", revision=None, model="org/small")
    # One directory was found for both.
    found = {
        one: locate(one) for one in [*artifacts_in_arguments(main), *artifacts_in_arguments(second)]
    }
    found = {one.artifact: one for one in found.values()}
    changed = [insert_directories(engine, found).vllm_args for engine in (main, second)]
    small = "/cache/org/small/model"
    assert (changed[0].speculative_config, changed[1].model) == ({"model": small}, small)


def test_unresolved_names_and_directories_of_the_operator_are_not_replaced() -> None:
    engine = engine_arguments(model="~/model")
    assert insert_directories(engine, {}) == engine
    (artifact,) = artifacts_in_arguments(engine)
    changed = insert_directories(engine, {artifact: locate(artifact, Origin.DIRECTORY)})
    assert changed.vllm_args.model == "~/model"


def test_the_downloads_of_a_start_are_counted(
    tmp_path: Path, model_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = make_artifacts(tmp_path, model_directory)
    locations = artifacts.locate_artifacts()
    found = {
        artifact: replace(location, downloaded_bytes=5, download_s=2.0)
        for artifact, location in locations.items()
    }
    monkeypatch.setattr(artifacts, "locate_artifacts", lambda _: found)
    downloads = watch_metrics("worker_downloaded_bytes_total", "worker_download_seconds_total")
    artifacts.locate_and_log([])
    assert downloads() == [5, 2.0]
