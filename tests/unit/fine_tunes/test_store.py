"""Which fine-tunes there are, which files they need, and when they are removed."""

import time
from pathlib import Path

import pytest
from support.engine.scripted import settings

from worker.errors import Conflict, InvalidInput, NoSuchObject
from worker.fine_tunes.request import Kept, Result, Source
from worker.fine_tunes.store import PREFIX, FineTunes
from worker.trainer.spec import Data, Hyperparameters
from worker.volume import ids
from worker.volume.record import DAY_S


@pytest.fixture
def fine_tunes(tmp_path: Path) -> FineTunes:
    return FineTunes.of(settings(FILES_PATH=str(tmp_path), FILES_RETENTION_DAYS="30"))


def uploaded(fine_tunes: FineTunes, purpose: str = "fine-tune", filename: str = "a.csv") -> Source:
    file = fine_tunes.files.receive([b"prompt,response\n"], filename=filename, purpose=purpose)
    return Source(file_id=file.id)


def asked(training: Source, validation: Source | None = None, created_at: int = 0) -> Kept:
    return Kept(
        id=ids.new(PREFIX),
        created_at=created_at or int(time.time()),
        base="demo",
        training=training,
        validation=validation,
    )


def test_what_somebody_has_to_run_and_its_inputs_are_known(fine_tunes: FineTunes) -> None:
    rows, held_out, old = (uploaded(fine_tunes) for _ in range(3))
    done = fine_tunes.create(asked(old, created_at=1))
    done.end(Result(status="failed", at=2))
    waiting = fine_tunes.create(asked(rows, held_out))
    assert [one.id for one in fine_tunes.all()] == [done.id, waiting.id]
    assert [one.id for one in fine_tunes.unfinished()] == [waiting.id]
    assert fine_tunes.inputs_in_use() == {rows.file_id, held_out.file_id}
    assert fine_tunes.get(waiting.id).request.validation == held_out


@pytest.mark.parametrize("field", ["training_file", "validation_file"])
def test_a_file_of_another_purpose_is_refused_by_the_field(
    fine_tunes: FineTunes, field: str
) -> None:
    right, wrong = uploaded(fine_tunes), uploaded(fine_tunes, purpose="batch")
    sources = (wrong, None) if field == "training_file" else (right, wrong)
    with pytest.raises(InvalidInput, match="'batch', not 'fine-tune'") as refused:
        fine_tunes.create(asked(*sources))
    assert (refused.value.param, refused.value.message.partition(":")[0]) == (field, field)
    assert fine_tunes.all() == []


def test_a_file_that_is_not_there_is_refused_by_the_field(fine_tunes: FineTunes) -> None:
    with pytest.raises(NoSuchObject, match="no file with this id") as refused:
        fine_tunes.create(asked(Source(file_id="file-nothing")))
    assert refused.value.param == "training_file"


def test_the_same_request_finds_the_same_one_and_another_one_is_refused(
    fine_tunes: FineTunes,
) -> None:
    first = asked(uploaded(fine_tunes), created_at=5)
    fine_tunes.create(first)
    again = fine_tunes.create(first.model_copy(update={"created_at": 7}))
    assert again.created_at == 5
    other = first.model_copy(update={"spec": Hyperparameters(epochs=2)})
    with pytest.raises(Conflict, match=r"fine-tuning job 'ftjob-.* is another one"):
        fine_tunes.create(other)


@pytest.mark.parametrize("id", ["ftjob-", "ftjob-../../etc", "batch_a", "ftjob-" + "a" * 24])
def test_there_is_none_with_any_other_id(fine_tunes: FineTunes, id: str) -> None:
    fine_tunes.create(asked(uploaded(fine_tunes)))
    with pytest.raises(NoSuchObject, match="no fine-tuning job with this id"):
        fine_tunes.get(id)


@pytest.mark.parametrize(
    ("filename", "form"), [("a.CSV", "csv"), ("b.jsonl", "jsonl"), ("c.txt", None), ("d", None)]
)
def test_the_name_of_a_file_says_how_its_rows_are_written(
    fine_tunes: FineTunes, filename: str, form: str | None
) -> None:
    found = fine_tunes.data(uploaded(fine_tunes, filename=filename))
    assert isinstance(found, Data)
    assert (found.form, found.path.read_bytes()) == (form, b"prompt,response\n")


@pytest.mark.parametrize(("days", "left"), [(29.9, 1), (30.1, 0)])
def test_one_is_removed_when_it_ended_as_long_ago_as_files_are_kept(
    fine_tunes: FineTunes, monkeypatch: pytest.MonkeyPatch, days: float, left: int
) -> None:
    one = fine_tunes.create(asked(uploaded(fine_tunes)))
    now = int(time.time())
    one.end(Result(status="cancelled", at=now))
    monkeypatch.setattr(time, "time", lambda: now + days * DAY_S)
    assert fine_tunes.sweep() == 1 - left
    assert len(fine_tunes.all()) == left
    assert one.directory.exists() == bool(left)


def test_one_that_has_not_ended_is_never_removed(
    fine_tunes: FineTunes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine_tunes.create(asked(uploaded(fine_tunes)))
    later = time.time() + 4_000 * DAY_S
    monkeypatch.setattr(time, "time", lambda: later)
    assert fine_tunes.sweep() == 0
