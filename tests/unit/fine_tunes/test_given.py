"""What a worker gives the process that trains."""

from pathlib import Path

import pytest

from worker.engine import Model
from worker.errors import InvalidInput
from worker.fine_tunes.given import directory_of


def model(place: Path | None, *tasks: str) -> Model:
    return Model(("demo",), 512, "cpu", frozenset(tasks), place=place)


def test_a_process_in_another_directory_finds_the_model() -> None:
    assert directory_of(model(Path("some/model"), "generate")) == Path.cwd() / "some" / "model"


def test_a_model_that_was_not_read_from_a_directory_is_not_trained() -> None:
    with pytest.raises(InvalidInput, match="MODEL_NAME"):
        directory_of(model(None, "generate"))


def test_an_embedder_is_not_trained(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="writes no text"):
        directory_of(model(tmp_path, "embed"))
