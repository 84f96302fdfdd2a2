"""The part of a start that comes before vLLM is imported."""

import os
from pathlib import Path

import pytest

from worker.engine.start import Bootstrap, unreadable_volume
from worker.settings.sources import gather


@pytest.fixture(autouse=True)
def nothing_exported() -> None:
    for name in ("RUNPOD_LOG_LEVEL", "HF_HOME", "HF_TOKEN"):
        os.environ.pop(name, None)


def bootstrap(**environ: str) -> Bootstrap:
    return Bootstrap.of(gather(environ, Path("/no such file")))


def test_settings_are_exported_once_and_what_was_chosen_is_known(tmp_path: Path) -> None:
    environ = {"MODEL_NAME": "org/model", "BASE_PATH": str(tmp_path), "HF_TOKEN": "hf_x"}
    started = bootstrap(**environ)
    assert [default.name for default in started.defaults] == ["RUNPOD_LOG_LEVEL", "HF_HOME"]
    assert os.environ["HF_TOKEN"] == "hf_x"
    assert os.environ["HF_HOME"] == f"{tmp_path}/huggingface-cache"
    assert bootstrap(**environ).defaults == ()


def test_wrong_settings_have_their_defaults_and_the_others_count(tmp_path: Path) -> None:
    right = {"MODEL_NAME": "org/model", "BASE_PATH": str(tmp_path), "DEFAULT_BATCH_SIZE": "7"}
    started = bootstrap(**right, MAX_CONCURRENCY="0")
    assert started.settings is not None
    assert (started.settings.max_concurrency, started.settings.default_batch_size) == (300, 7)
    assert os.environ["HF_HOME"] == f"{tmp_path}/huggingface-cache"
    assert [mistake.name for mistake in started.mistakes] == ["MAX_CONCURRENCY"]


@pytest.mark.parametrize("model", ["", "/no/such", "org/my model"])
def test_without_a_model_there_are_no_settings(model: str) -> None:
    started = bootstrap(MODEL_NAME=model, MAX_CONCURRENCY="0")
    assert started.settings is None
    assert [mistake.name for mistake in started.mistakes] == ["MAX_CONCURRENCY", "MODEL_NAME"]
    assert "RUNPOD_LOG_LEVEL" not in os.environ


def test_mistakes_of_all_sources_are_reported_in_the_operators_spelling(tmp_path: Path) -> None:
    (file := tmp_path / "broken.yaml").write_text("seed: [1")
    started = bootstrap(MODEL="org/model", MIN_BATCH_SIZE="-1", VLLM_CONFIG_FILE=str(file))
    assert {mistake.name for mistake in started.mistakes} == {"VLLM_CONFIG_FILE", "MIN_BATCH_SIZE"}


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("nope", "in a pod the volume is at /workspace"),
        ("loop", "symbolic links"),
        ("file", "Not a directory"),
    ],
)
def test_a_volume_that_can_not_be_read_is_a_mistake(tmp_path: Path, name: str, advice: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").touch()
    place = str(tmp_path / name)
    (mistake,) = unreadable_volume(gather({"MODEL_NAME": "org/model", "BASE_PATH": place}))
    assert (mistake.name, mistake.value) == ("BASE_PATH", place)
    assert advice in mistake.advice


@pytest.mark.parametrize("volume", [{}, {"BASE_PATH": "/"}])
def test_a_volume_that_is_not_named_or_can_be_read_is_none(volume: dict[str, str]) -> None:
    assert [*unreadable_volume(gather({"MODEL_NAME": "org/model", **volume}))] == []
