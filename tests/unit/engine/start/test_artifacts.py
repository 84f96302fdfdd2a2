"""Repositories that settings name are found or downloaded; then the libraries go offline."""

import json
import os
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
from support.hub.caches import NAME, SHARDS, fill_cache, isolate_hub_library, make_model
from support.hub.server import hub
from support.metrics import watch_metrics
from support.settings import engine_arguments, start_on

from worker.engine.arguments import EngineArguments
from worker.engine.machine import Machine
from worker.engine.start import Start
from worker.engine.start.artifacts import (
    EngineArtifacts,
    artifacts_in_arguments,
    artifacts_in_settings,
    places_to_search,
)
from worker.engine.start.steps import with_artifact_directories
from worker.errors import StartFailed
from worker.settings.sources import RawSettings, gather_settings
from worker.store import Artifact, ArtifactKind, ArtifactLocation, ModelUnavailable, Origin, Reason

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


def test_without_a_volume_the_librarys_own_cache_is_used() -> None:
    assert places_to_search({"HF_HUB_CACHE": "/cache"}).volume == Path("/cache")
    assert places_to_search({"HF_HOME": "/home"}).volume == Path("/home/hub")
    assert places_to_search({"XDG_CACHE_HOME": "/xdg"}).volume == Path("/xdg/huggingface/hub")


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


def test_both_engines_get_the_directories_of_their_models(
    tmp_path: Path, model_directory: Path, hub_cache: Path
) -> None:
    first = fill_cache(hub_cache, model_directory, revision="v1")
    other = fill_cache(hub_cache, make_model(tmp_path / "b", SHARDS), name="org/embedder")
    second = engine_arguments("EMBEDDING_", model="org/embedder", revision=None)
    engines = [engine_arguments(), second]
    artifacts = [one for engine in engines for one in artifacts_in_arguments(engine)]
    found = make_artifacts(tmp_path, MODEL_REVISION="v1").locate_and_log(artifacts)
    places = [insert_directories(engine, found).vllm_args.model for engine in engines]
    assert places == [str(first), str(other)]


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
