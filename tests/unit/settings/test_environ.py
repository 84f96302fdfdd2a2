"""What the worker writes into the environment, and reads from it."""

from pathlib import Path

import pytest

from worker.settings import Settings
from worker.settings.environment import export, hub_cache, is_set, overwrite, platform_around


def exported(environ: dict[str, str], **settings: str) -> dict[str, str]:
    """Return an environment after the export of settings."""
    Settings.from_env({"MODEL_NAME": "org/model", **settings}).export(environ)
    return environ


def test_export_sets_what_libraries_read_and_keeps_what_the_operator_set() -> None:
    assert exported({"RUNPOD_LOG_LEVEL": "DEBUG"}) == {
        "RUNPOD_LOG_LEVEL": "DEBUG",
        "RUNPOD_SKIP_GPU_CHECK": "true",
        "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_NO_USAGE_STATS": "1",
    }


@pytest.mark.parametrize(
    ("environ", "settings", "name", "value"),
    [
        ({}, {"BASE_PATH": "/nowhere"}, "HF_HOME", "/nowhere/huggingface-cache"),
        ({"HF_HOME": "/mine"}, {"BASE_PATH": "/nowhere"}, "HF_HOME", "/mine"),
        ({}, {"HF_TOKEN": "hf_secret"}, "HF_TOKEN", "hf_secret"),
        ({"RUNPOD_LOG_LEVEL": " "}, {}, "RUNPOD_LOG_LEVEL", "INFO"),
    ],
)
def test_a_variable_is_exported(
    environ: dict[str, str], settings: dict[str, str], name: str, value: str
) -> None:
    assert exported({**environ}, **settings)[name] == value


def test_the_choice_of_the_hubs_cache_is_reported_only_where_it_was_made(tmp_path: Path) -> None:
    settings = Settings.from_env({"MODEL_NAME": "org/model", "BASE_PATH": str(tmp_path)})
    choices = [str(choice) for choice in settings.export({"RUNPOD_LOG_LEVEL": "ERROR"})]
    assert choices == [f"HF_HOME={tmp_path}/huggingface-cache (in BASE_PATH)"]
    assert settings.export({"RUNPOD_LOG_LEVEL": "ERROR", "HF_HOME": "/mine"}) == []


@pytest.mark.parametrize(
    ("environ", "cache"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HUB_CACHE": " ", "HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({}, Path.home() / ".cache" / "huggingface" / "hub"),
    ],
)
def test_the_hubs_cache_is_its_librarys(environ: dict[str, str], cache: str | Path) -> None:
    assert hub_cache(environ) == Path(cache)


@pytest.mark.parametrize("name", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"])
def test_the_hubs_cache_may_name_variables(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMEWHERE", "/d")
    below = "huggingface/hub" if name == "XDG_CACHE_HOME" else ""
    assert hub_cache({name: "$SOMEWHERE/${SOMEWHERE}/e"}) == Path("/d/d/e") / below


def test_export_keeps_and_overwrite_replaces() -> None:
    environ = {"A": "operator's"}
    export({"A": "ours", "B": "ours"}, environ)
    assert environ == {"A": "operator's", "B": "ours"}
    overwrite("A", "ours", environ)
    assert environ["A"] == "ours"


@pytest.mark.parametrize(
    ("environ", "around"),
    [
        ({}, False),
        ({"RUNPOD_REALTIME_PORT": "0"}, False),
        ({"RUNPOD_REALTIME_PORT": "8080"}, True),
        ({"RUNPOD_WEBHOOK_GET_JOB": "http://x?"}, True),
    ],
)
def test_a_platform_is_where_the_sdk_finds_jobs(environ: dict[str, str], around: bool) -> None:
    assert platform_around(environ) is around


@pytest.mark.parametrize(
    ("environ", "set_"), [({"A": "0"}, True), ({}, False), ({"A": ""}, False), ({"A": " "}, False)]
)
def test_a_variable_is_set_if_it_holds_anything(environ: dict[str, str], set_: bool) -> None:
    assert is_set("A", environ) is set_
