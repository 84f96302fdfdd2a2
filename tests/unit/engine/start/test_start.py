"""The part of startup before vLLM is imported."""

import os
from pathlib import Path

import pytest

from worker.engine.start import Start, check_base_path
from worker.settings.sources import gather_settings


@pytest.fixture(autouse=True)
def clear_environ() -> None:
    for name in ("RUNPOD_LOG_LEVEL", "HF_HOME", "HF_TOKEN"):
        os.environ.pop(name, None)


def read(**environ: str) -> Start:
    return Start.read(gather_settings(environ, Path("/no such file")))


def test_settings_are_exported_once_and_the_defaults_are_recorded(tmp_path: Path) -> None:
    environ = {"MODEL_NAME": "org/model", "BASE_PATH": str(tmp_path), "HF_TOKEN": "hf_x"}
    result = read(**environ)
    assert [default.name for default in result.defaults] == ["RUNPOD_LOG_LEVEL", "HF_HOME"]
    assert os.environ["HF_TOKEN"] == "hf_x"
    assert os.environ["HF_HOME"] == f"{tmp_path}/huggingface-cache"
    assert read(**environ).defaults == ()


def test_wrong_settings_get_their_defaults_and_correct_ones_are_used(tmp_path: Path) -> None:
    right = {"MODEL_NAME": "org/model", "BASE_PATH": str(tmp_path), "DEFAULT_BATCH_SIZE": "7"}
    result = read(**right, MAX_CONCURRENCY="0")
    assert (result.settings.max_concurrency, result.settings.default_batch_size) == ("auto", 7)
    assert os.environ["HF_HOME"] == f"{tmp_path}/huggingface-cache"
    assert [mistake.name for mistake in result.mistakes] == ["MAX_CONCURRENCY"]


@pytest.mark.parametrize("model", ["", "/no/such", "org/my model"])
def test_without_a_model_the_other_settings_are_checked(model: str) -> None:
    result = read(MODEL_NAME=model, MAX_CONCURRENCY="0")
    assert not result.has_model
    assert [mistake.name for mistake in result.mistakes] == ["MAX_CONCURRENCY", "MODEL_NAME"]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("nope", "in a pod the volume is at /workspace"),
        ("loop", "symbolic links"),
        ("file", "Not a directory"),
    ],
)
def test_an_unreadable_volume_is_a_mistake(tmp_path: Path, name: str, advice: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").touch()
    place = str(tmp_path / name)
    (mistake,) = check_base_path(gather_settings({"MODEL_NAME": "org/model", "BASE_PATH": place}))
    assert (mistake.name, mistake.value) == ("BASE_PATH", place)
    assert advice in mistake.advice


@pytest.mark.parametrize("volume", [{}, {"BASE_PATH": "/"}])
def test_a_readable_or_unset_volume_is_no_mistake(volume: dict[str, str]) -> None:
    assert [*check_base_path(gather_settings({"MODEL_NAME": "org/model", **volume}))] == []
