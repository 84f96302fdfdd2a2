"""Jobs that run a fine-tune: one that is there, or one of a file, a path or rows."""

from typing import Any

import pytest

from worker.errors import InvalidInput
from worker.job.fine_tune import FineTuneJob

ID = "ftjob-" + "a" * 24


def read(**spec: Any) -> FineTuneJob:
    return FineTuneJob.read({"fine_tune": spec})


@pytest.mark.parametrize(
    "spec",
    [
        {"id": ID},
        {"id": ID, "max_runtime_sec": 60, "training_file": None, "suffix": None},
        {"training_file": "file-a"},
        {"training_path": "rows.csv", "model": "demo"},
        {"rows": [{"prompt": "a", "response": "b"}], "hyperparameters": {"epochs": 1}},
    ],
)
def test_a_fine_tune_has_one_source(spec: dict[str, Any]) -> None:
    found = read(**spec).fine_tune
    assert {name: getattr(found, name) for name in spec} == spec


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"id": ID, "training_file": "file-a"},
        {"training_file": "file-a", "training_path": "rows.csv"},
        {"rows": [{}], "training_file": "file-a"},
    ],
)
def test_none_and_several_sources_are_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="one of id, training_file, training_path and rows"):
        read(**spec)


def test_one_that_is_there_is_not_changed() -> None:
    with pytest.raises(InvalidInput, match="goes on with its id alone"):
        read(id=ID, suffix="other")


@pytest.mark.parametrize(
    ("spec", "param"),
    [
        ({"rows": []}, "fine_tune.rows"),
        ({"training_file": ""}, "fine_tune.training_file"),
        ({"training_file": "file-a", "max_runtime_sec": 0}, "fine_tune.max_runtime_sec"),
        ({"training_file": "file-a", "seed": 1.5}, "fine_tune.seed"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(spec: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(**spec)
    assert caught.value.param == param


def test_an_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(InvalidInput, match=r"did you mean 'fine_tune\.training_file'"):
        read(trainingfile="file-a")
