"""Creations of fine-tunes in tests: by a worker that fetches nothing, unless a test lets it."""

from pathlib import Path
from typing import Any

import pytest

from worker.engine import Model
from worker.errors import RequestError
from worker.fine_tunes.creation import Creator
from worker.fine_tunes.sources import Sources
from worker.fine_tunes.state import FineTune
from worker.fine_tunes.store import PREFIX, FineTunes
from worker.job.fine_tune import FineTuneSpec
from worker.volume import ids

CSV = b"prompt,response\na,b\n"
MODEL = Model(
    names=("demo", "also"),
    max_model_len=64,
    device="cpu",
    tasks=frozenset({"generate"}),
    source="tiny/demo",
    place=Path("demo"),
    max_lora_rank=16,
)
ID = ids.derived(PREFIX, "job-1")


def creator(fine_tunes: FineTunes, model: Model = MODEL, **more: Any) -> Creator:
    return Creator(fine_tunes, model, Sources(fine_tunes.files, None), **more)


def create(made_by: Creator, adapters: tuple[str, ...] = (), **asked: Any) -> FineTune:
    if not {"training_file", "training_path", "rows"} & asked.keys():
        asked["training_file"] = uploaded(made_by.fine_tunes)
    return made_by.create(FineTuneSpec.of_body(asked), ID, adapters=adapters)


def uploaded(fine_tunes: FineTunes, content: bytes = CSV) -> str:
    return fine_tunes.files.receive([content], filename="a.csv", purpose="fine-tune").id


def refused(made_by: Creator, **asked: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        create(made_by, **asked)
    assert not made_by.fine_tunes.all()
    return caught.value


def content(fine_tunes: FineTunes, file_id: str) -> bytes:
    return fine_tunes.files.content(fine_tunes.files.get(file_id)).read_bytes()
