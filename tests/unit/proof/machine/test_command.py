"""The command's environment and model."""

import os
from argparse import Namespace
from pathlib import Path

import pytest

from proof.machine.__main__ import forget_settings, make_model, measure, read_command_line
from proof.measure.processes import Lost


def test_settings_of_a_pod_and_directories_of_caches_are_forgotten() -> None:
    forgotten = ("MAX_MODEL_LEN", "RUNPOD_POD_ID", "EMBEDDING_MODEL_NAME", "VLLM_CACHE_ROOT")
    remaining = ("HF_TOKEN", "HF_HOME", "CUDA_VISIBLE_DEVICES", "UNKNOWN_TO_THE_WORKER")
    os.environ.update(dict.fromkeys((*forgotten, *remaining), "x"))
    forget_settings()
    assert [name for name in forgotten if name in os.environ] == []
    assert [name for name in remaining if name not in os.environ] == []


def read(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> Namespace:
    monkeypatch.setattr("sys.argv", ["proof.machine", *map(str, words)])
    return read_command_line()


def test_a_size_prevails_over_the_models_name_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MODEL_NAME", "org/name")
    assert read(monkeypatch).model == "org/name"
    sized = read(monkeypatch, "--size", "tiny")
    assert (sized.model, sized.size) == (None, "tiny")


async def test_a_models_directory_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, folder = tmp_path / "model", tmp_path / "folder"
    for directory in (model, folder):
        directory.mkdir()
    assert await make_model(read(monkeypatch, "--model", model), folder) == model
    assert [*model.iterdir(), *folder.iterdir()] == []


async def test_a_folder_with_a_path_too_long_for_sockets_is_refused_and_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / ("long" * 20)
    place.mkdir()
    with pytest.raises(Lost, match="choose another --folder"):
        await measure(read(monkeypatch, "--folder", place))
    assert list(place.iterdir()) == []
