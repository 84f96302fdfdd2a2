"""What the worker writes into the environment, and reads from it."""

from pathlib import Path

import pytest

from worker.settings import Settings
from worker.settings.environment import export, hub_cache, is_set, overwrite, platform_around

MODEL = {"MODEL_NAME": "org/model"}


def test_export_sets_what_libraries_read_and_keeps_what_the_operator_set() -> None:
    environ = {"RUNPOD_LOG_LEVEL": "DEBUG"}
    Settings.from_env(MODEL).export(environ)
    assert environ == {
        "RUNPOD_LOG_LEVEL": "DEBUG",
        "RUNPOD_SKIP_GPU_CHECK": "true",
        "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_NO_USAGE_STATS": "1",
    }


def test_a_base_path_that_is_set_is_used_whether_it_exists_or_not() -> None:
    environ: dict[str, str] = {}
    Settings.from_env({**MODEL, "BASE_PATH": "/nowhere"}).export(environ)
    assert environ["HF_HOME"] == "/nowhere/huggingface-cache"


@pytest.mark.parametrize(
    ("environ", "cache"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HUB_CACHE": " ", "HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
    ],
)
def test_the_hubs_cache_is_where_its_library_has_it(environ: dict[str, str], cache: str) -> None:
    assert hub_cache(environ) == Path(cache)


@pytest.mark.parametrize("name", ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"])
def test_the_path_of_the_hubs_cache_may_name_other_variables(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOMEWHERE", "/d")
    below = "huggingface/hub" if name == "XDG_CACHE_HOME" else ""
    assert hub_cache({name: "$SOMEWHERE/${SOMEWHERE}/e"}) == Path("/d/d/e") / below


def test_without_any_setting_the_hubs_cache_is_in_the_home() -> None:
    assert hub_cache({}) == Path.home() / ".cache" / "huggingface" / "hub"


def test_export_takes_a_blank_variable_for_unset() -> None:
    environ = {"RUNPOD_LOG_LEVEL": " "}
    Settings.from_env(MODEL).export(environ)
    assert environ["RUNPOD_LOG_LEVEL"] == "INFO"


def test_the_sdks_log_level_is_info_by_default() -> None:
    environ: dict[str, str] = {}
    Settings.from_env(MODEL).export(environ)
    assert environ["RUNPOD_LOG_LEVEL"] == "INFO"


def test_a_token_from_a_file_is_there_for_the_hubs_library() -> None:
    environ: dict[str, str] = {}
    Settings.from_env({**MODEL, "HF_TOKEN": "hf_secret"}).export(environ)
    assert environ["HF_TOKEN"] == "hf_secret"


def test_the_hubs_cache_lies_on_the_volume_if_there_is_one(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    Settings.from_env({**MODEL, "BASE_PATH": str(tmp_path)}).export(environ)
    assert environ["HF_HOME"] == str(tmp_path / "huggingface-cache")


def test_a_hub_cache_that_the_operator_chose_stays(tmp_path: Path) -> None:
    environ = {"HF_HOME": "/mine"}
    Settings.from_env({**MODEL, "BASE_PATH": str(tmp_path)}).export(environ)
    assert environ["HF_HOME"] == "/mine"


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
def test_a_platform_is_around_where_the_sdk_finds_jobs(
    environ: dict[str, str], around: bool
) -> None:
    assert platform_around(environ) is around


@pytest.mark.parametrize(
    ("environ", "set_"), [({"A": "0"}, True), ({}, False), ({"A": ""}, False), ({"A": " "}, False)]
)
def test_a_variable_is_set_if_it_holds_anything(environ: dict[str, str], set_: bool) -> None:
    assert is_set("A", environ) is set_
