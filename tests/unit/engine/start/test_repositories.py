"""Repositories that settings name: found or downloaded, then the libraries are offline."""

import json
import os
from argparse import Namespace
from pathlib import Path

import pytest
from support.engine.arguments import arguments
from support.hub.caches import NAME, SHARDS, cached, isolate_hub_library, model
from support.hub.server import hub

from worker.engine.arguments import EngineArguments, StartContext
from worker.engine.machine import Machine
from worker.engine.start import Bootstrap
from worker.engine.start.needs import wanted_by_arguments, wanted_by_settings
from worker.engine.start.repositories import Repositories, places
from worker.engine.start.steps import with_directories
from worker.errors import StartFailed
from worker.settings.sources import Given, gather
from worker.store import Found, Kind, Origin, Reason, Unavailable, Wanted

OFFLINE = "HF_HUB_OFFLINE"
CODE = {"model_type": "own", "auto_map": {"AutoModel": "org/code--own.Model"}}


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate_hub_library(tmp_path, monkeypatch)
    for name in ("HF_HOME", "HF_HUB_CACHE", OFFLINE, "TRANSFORMERS_OFFLINE"):
        os.environ.pop(name, None)


@pytest.fixture
def model_directory(tmp_path: Path) -> Path:
    return model(tmp_path / "source")


@pytest.fixture
def hub_cache(tmp_path: Path) -> Path:
    """The cache on the volume."""
    return tmp_path / "huggingface-cache" / "hub"


def settings(volume: Path, **environ: str) -> Given:
    """Return the settings of a worker with a volume of its own, whose environment is complete."""
    given = gather({"BASE_PATH": str(volume), **environ}, volume / "no such file")
    Bootstrap.of(given)
    return given


def repositories(volume: Path, model_name: object = NAME, **environ: str) -> Repositories:
    return Repositories(settings(volume, **{"MODEL_NAME": str(model_name), **environ}))


def test_a_volume_holds_the_cache(tmp_path: Path, model_directory: Path, hub_cache: Path) -> None:
    snapshot = cached(hub_cache, model_directory)
    (found,) = repositories(tmp_path).prefetch()
    assert (found.place, found.origin) == (snapshot, Origin.VOLUME)
    assert os.environ["HF_HOME"] == str(hub_cache.parent)


def test_without_a_volume_the_librarys_own_cache_is_used() -> None:
    assert places({"HF_HUB_CACHE": "/cache"}).volume == Path("/cache")
    assert places({"HF_HOME": "/home"}).volume == Path("/home/hub")
    assert places({"XDG_CACHE_HOME": "/xdg"}).volume == Path("/xdg/huggingface/hub")


def test_a_directory_is_found_whatever_else_is_wrong(tmp_path: Path, model_directory: Path) -> None:
    wrong = repositories(tmp_path, model_directory, MAX_CONCURRENCY="0", SEED="x")
    (found,) = wrong.result().values()
    assert (found.place, found.origin) == (model_directory, Origin.DIRECTORY)


def test_what_is_named_twice_is_looked_for_once_and_further_repositories_are_found_too(
    tmp_path: Path, model_directory: Path
) -> None:
    name = str(model_directory)
    both = settings(tmp_path, MODEL_NAME=name, EMBEDDING_MODEL_NAME=name)
    assert len(wanted_by_settings(both)) == 2
    assert len(Repositories(both).prefetch()) == 1
    other = Wanted(str(model(tmp_path / "other")))
    found = repositories(tmp_path, name).result([other, Wanted("s3://bucket/model")])
    assert [repository.place.name for repository in found.values()] == ["source", "other"]


def test_what_a_model_refers_to_is_found_with_it_and_code_where_it_is_trusted(
    tmp_path: Path, model_directory: Path, hub_cache: Path
) -> None:
    speculators = {"speculators_config": {"verifier": {"name_or_path": "org/verifier"}}}
    (model_directory / "config.json").write_text(json.dumps({"model_type": "own", **speculators}))
    verifier = model(tmp_path / "verifier")
    (verifier / "config.json").write_text(json.dumps(CODE))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "own.py").write_text("")
    named = [model_directory, cached(hub_cache, verifier, name="org/verifier")]
    assert [one.place for one in repositories(tmp_path, model_directory).prefetch()] == named
    named.append(cached(hub_cache, tmp_path / "code", name="org/code"))
    found = repositories(tmp_path, model_directory, TRUST_REMOTE_CODE="1").prefetch()
    assert [repository.place for repository in found] == named
    assert found[2].wanted.kind is Kind.CODE


# Offline:


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
def test_settings_that_need_nothing_of_the_hub_leave_the_libraries_offline(
    tmp_path: Path, model_directory: Path, environ: dict[str, str]
) -> None:
    repositories(tmp_path, model_directory, **environ).go_offline()
    assert os.environ[OFFLINE] == "1"
    # The hub's library reads TRANSFORMERS_OFFLINE only where HF_HUB_OFFLINE is unset.
    assert "TRANSFORMERS_OFFLINE" not in os.environ


def test_the_operators_setting_wins(tmp_path: Path, model_directory: Path) -> None:
    os.environ[OFFLINE] = "0"
    repositories(tmp_path, model_directory).go_offline()
    assert os.environ[OFFLINE] == "0"


def test_the_store_itself_still_downloads(tmp_path: Path, model_directory: Path) -> None:
    with hub() as running:
        os.environ["HF_ENDPOINT"] = running.endpoint
        offline = repositories(tmp_path, model_directory)
        offline.go_offline()
        with pytest.raises(Unavailable) as raised:
            offline.result([Wanted("org/none")])
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
def test_with_something_that_only_vllm_finds_they_stay_online(
    tmp_path: Path, model_directory: Path, environ: dict[str, str]
) -> None:
    online = repositories(tmp_path, model_directory, **environ)
    online.go_offline()
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
def test_what_only_vllm_finds_is_not_fetched(tmp_path: Path, model_name: str, extra: str) -> None:
    with pytest.raises(StartFailed, match="Only vLLM itself can find"):
        repositories(tmp_path, model_name, VLLM_EXTRA_ARGS=extra).prefetch()


# Into vLLM's arguments:


def at(wanted: Wanted, origin: Origin = Origin.VOLUME) -> Found:
    return Found(wanted, Path("/cache") / wanted.model / str(wanted.kind), origin, "c" * 40)


def placed(engine: EngineArguments, found: dict[Wanted, Found]) -> EngineArguments:
    return with_directories(engine, StartContext(Machine(cpu=True), found))


def resolved(engine: EngineArguments) -> Namespace:
    """Put directories in place of all names, and return vLLM's arguments."""
    return placed(engine, {one: at(one) for one in wanted_by_arguments(engine)}).vllm


def test_directories_take_the_place_of_names() -> None:
    adapter = Namespace(name="one", path="org/adapter")
    engine = arguments(
        tokenizer="org/tokenizer",
        lora_modules=[adapter, Namespace(name="two", path="/adapters/two")],
        speculative_config={"model": "org/draft", "num_speculative_tokens": 3},
    )
    wanted = wanted_by_arguments(engine)
    here = {one: at(one, Origin.DIRECTORY) for one in wanted if one.model == "/adapters/two"}
    changed = placed(engine, {one: at(one) for one in wanted} | here)
    vllm = changed.vllm
    assert vllm.model == "/cache/org/name/model"
    assert vllm.tokenizer == "/cache/org/tokenizer/tokenizer"
    paths = ["/cache/org/adapter/adapter", "/adapters/two"]
    assert [module.path for module in vllm.lora_modules] == paths
    draft = {"model": "/cache/org/draft/model", "num_speculative_tokens": 3}
    assert vllm.speculative_config == draft
    assert (changed.origin, changed.commit) == (Origin.VOLUME, "c" * 40)
    assert (changed.model_name, engine.vllm.model, adapter.path) == (NAME, NAME, "org/adapter")


def test_what_is_the_model_goes_with_it_and_is_wanted_once() -> None:
    place = "/cache/org/name/model"
    engine = arguments(tokenizer=NAME, speculative_config={"model": NAME, "method": "mtp"})
    assert len(wanted_by_arguments(engine)) == 1
    vllm = resolved(engine)
    assert (vllm.model, vllm.tokenizer) == (place, place)
    assert vllm.speculative_config == {"model": place, "method": "mtp"}
    # A tokenizer may be the model's at another revision.
    vllm = resolved(arguments(tokenizer_revision="v2"))
    assert (vllm.model, vllm.tokenizer) == (place, "/cache/org/name/tokenizer")


def test_a_model_that_two_settings_name_replaces_both_names() -> None:
    main = arguments(revision=None, speculative_config={"model": "org/small"})
    second = arguments("EMBEDDING_", revision=None, model="org/small")
    # One directory was found for both.
    found = {one: at(one) for one in [*wanted_by_arguments(main), *wanted_by_arguments(second)]}
    found = {one.wanted: one for one in found.values()}
    changed = [placed(engine, found).vllm for engine in (main, second)]
    small = "/cache/org/small/model"
    assert (changed[0].speculative_config, changed[1].model) == ({"model": small}, small)


def test_names_that_were_not_looked_for_and_directories_of_the_operators_stay() -> None:
    engine = arguments(model="~/model")
    assert placed(engine, {}) == engine
    (wanted,) = wanted_by_arguments(engine)
    changed = placed(engine, {wanted: at(wanted, Origin.DIRECTORY)})
    assert changed.vllm.model == "~/model"


def test_engines_get_directories(tmp_path: Path, model_directory: Path, hub_cache: Path) -> None:
    first = cached(hub_cache, model_directory, revision="v1")
    other = cached(hub_cache, model(tmp_path / "b", SHARDS), name="org/embedder")
    second = arguments("EMBEDDING_", model="org/embedder", revision=None)
    engines = [arguments(), second]
    wanted = [one for engine in engines for one in wanted_by_arguments(engine)]
    found = repositories(tmp_path, MODEL_REVISION="v1").find(wanted)
    places = [placed(engine, found).vllm.model for engine in engines]
    assert places == [str(first), str(other)]
