"""Creating fine-tunes: of which model, of which rows, and what is refused by name."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.creations import CSV, MODEL, content, create, creator, refused

from worker.errors import Conflict, InvalidInput, NoSuchObject, RequestError
from worker.fine_tunes.store import FineTunes


@pytest.mark.parametrize("name", [None, "demo", "also", "tiny/demo"])
def test_a_base_model_is_known_by_all_its_names(fine_tunes: FineTunes, name: str | None) -> None:
    assert create(creator(fine_tunes), model=name).request.base == "demo"


def test_what_was_asked_is_kept(fine_tunes: FineTunes) -> None:
    kept = create(
        creator(fine_tunes),
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}},
        seed=7,
        suffix="mine",
        metadata={"a": "b"},
    ).request
    assert (kept.spec.epochs, kept.seed, kept.suffix, kept.metadata) == (2, 7, "mine", {"a": "b"})
    assert (kept.method, kept.wandb) == ("supervised", None)


def test_an_adapter_is_no_base(fine_tunes: FineTunes) -> None:
    error = refused(creator(fine_tunes), model="mine", adapters=("mine",))
    assert error.param == "model"
    assert "'mine' is an adapter: a fine-tune begins with a base model, demo" in error.message


def test_an_unknown_model_is_refused_with_the_one_that_there_is(fine_tunes: FineTunes) -> None:
    error = refused(creator(fine_tunes), model="other")
    assert (error.param, error.status) == ("model", 400)
    assert "this worker has demo" in error.message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_lora_rank": None}, "its operator sets ENABLE_LORA=1"),
        ({"tasks": frozenset({"embed"})}, "it writes no text"),
        ({"quantization": "awq"}, "it is quantised"),
        ({"place": None}, "not read from a directory"),
    ],
)
def test_a_worker_that_could_not_serve_the_result_refuses(
    fine_tunes: FineTunes, changes: dict[str, Any], message: str
) -> None:
    assert message in refused(creator(fine_tunes, replace(MODEL, **changes))).message


def test_hyperparameters_are_named_where_they_stand(fine_tunes: FineTunes) -> None:
    given = {"n_epochs": 99}
    error = refused(creator(fine_tunes), hyperparameters=given)
    assert error.param == "hyperparameters.n_epochs"
    method = {"type": "supervised", "supervised": {"hyperparameters": given}}
    error = refused(creator(fine_tunes), method=method)
    assert error.param == "method.supervised.hyperparameters.n_epochs"


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"suffix": "a" * 65}, "suffix"),
        ({"suffix": ""}, "suffix"),
        *(({"suffix": suffix}, "suffix") for suffix in ("../x", "a b", "a.b", "ä", "a\n", "a/")),
        ({"seed": -1}, "seed"),
        ({"seed": "7"}, "seed"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
        ({"method": {"type": "dpo", "dpo": {}}}, "method.type"),
        ({"method": {"type": "reinforcement"}}, "method.type"),
        ({"method": {"type": "supervised", "dpo": {}}}, "method"),
        (
            {
                "hyperparameters": {},
                "method": {"type": "supervised", "supervised": {"hyperparameters": {}}},
            },
            "hyperparameters",
        ),
        ({"integrations": [{"type": "tensorboard"}]}, "integrations.0.type"),
        ({"n_epochs": 3}, "n_epochs"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(
    fine_tunes: FineTunes, asked: dict[str, Any], field: str
) -> None:
    assert refused(creator(fine_tunes), **asked).param == field


WANDB = [{"type": "wandb", "wandb": {"project": "p", "tags": ["a"]}}]


def test_weights_and_biases_needs_its_package_and_a_key(fine_tunes: FineTunes) -> None:
    there = importlib.util.find_spec("wandb") is not None
    error = refused(creator(fine_tunes, wandb_key=not there), integrations=WANDB)
    assert error.param == "integrations"
    assert ("WANDB_API_KEY" if there else "no package wandb") in error.message


def test_the_file_may_be_one_on_the_volume(fine_tunes: FineTunes, tmp_path: Path) -> None:
    (tmp_path / "inbox" / "rows.csv").write_bytes(CSV)
    for field in ("training_file", "training_path"):
        asked: dict[str, Any] = {field: "inbox/rows.csv"}
        made = create(creator(fine_tunes), **asked)
        assert content(fine_tunes, made.request.training.file_id) == CSV


def test_the_rows_may_come_with_the_job(fine_tunes: FineTunes) -> None:
    made = create(creator(fine_tunes), rows=[{"prompt": "ä", "response": "b"}])
    rows = content(fine_tunes, made.request.training.file_id)
    assert rows.decode() == '{"prompt":"ä","response":"b"}\n'
    assert fine_tunes.data(made.request.training).form == "jsonl"


@pytest.mark.parametrize("field", ["training_file", "validation_file"])
@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("file-nothing", NoSuchObject),
        ("nothing.csv", InvalidInput),
        ("../../etc/passwd", InvalidInput),
        ("worker/files", InvalidInput),
        ("https://example.com/rows.csv", InvalidInput),
    ],
)
def test_a_file_that_is_not_to_be_had_is_refused_by_the_field(
    fine_tunes: FineTunes, field: str, given: str, error: type[RequestError]
) -> None:
    found = refused(creator(fine_tunes), **{field: given})
    assert isinstance(found, error)
    assert (found.param, found.message.partition(":")[0]) == (field, field)


def test_the_same_request_finds_what_it_has_made_whatever_the_path_has_now(
    fine_tunes: FineTunes, tmp_path: Path
) -> None:
    (tmp_path / "inbox" / "rows.csv").write_bytes(CSV)
    made = create(creator(fine_tunes), training_file="inbox/rows.csv")
    (tmp_path / "inbox" / "rows.csv").unlink()
    assert create(creator(fine_tunes), training_file="inbox/rows.csv").request == made.request
    with pytest.raises(Conflict):
        create(creator(fine_tunes), training_file="inbox/rows.csv", suffix="other")


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ({"training_file": "inbox/a.csv"}, {"training_file": "inbox/b.csv"}),
        ({"training_path": "inbox/a.csv"}, {"training_path": "inbox/b.csv"}),
        ({"rows": [{"prompt": "a"}]}, {"rows": [{"prompt": "b"}]}),
        ({"rows": [{"prompt": "a"}]}, {"training_file": "inbox/a.csv"}),
        (
            {"training_file": "inbox/a.csv"},
            {"training_file": "inbox/a.csv", "validation_file": "inbox/b.csv"},
        ),
    ],
)
def test_other_rows_under_the_same_id_are_refused(
    fine_tunes: FineTunes, tmp_path: Path, first: dict[str, Any], other: dict[str, Any]
) -> None:
    for name in ("inbox/a.csv", "inbox/b.csv"):
        (tmp_path / name).write_bytes(CSV)
    made = create(creator(fine_tunes), **first)
    assert create(creator(fine_tunes), **first).request == made.request
    with pytest.raises(Conflict):
        create(creator(fine_tunes), **other)
