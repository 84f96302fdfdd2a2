"""Fine-tunes in tests: created, and told of as the process that trains does it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from worker.fine_tunes.request import Kept, Source
from worker.fine_tunes.state import FineTune
from worker.fine_tunes.store import PREFIX, FineTunes
from worker.trainer.spec import ATTEMPTS, EVENTS, Event, Resumed
from worker.volume import ids

CSV = b"prompt,response\na,b\n"


def uploaded(fine_tunes: FineTunes, content: bytes = CSV, purpose: str = "fine-tune") -> str:
    """Upload a file; return its id."""
    return fine_tunes.files.receive([content], filename="a.csv", purpose=purpose).id


def created(fine_tunes: FineTunes, created_at: int = 100, **more: Any) -> FineTune:
    training = Source(file_id=uploaded(fine_tunes))
    id = ids.new(PREFIX)
    return fine_tunes.create(
        Kept(id=id, created_at=created_at, base="demo", training=training, **more)
    )


def loss(step: int, value: float, at: float = 200) -> Event:
    metrics = {"loss": value, "grad_norm": 0.5, "learning_rate": 0.002, "epoch": step / 10}
    return Event(at=at, message=str(metrics), step=step, metrics=metrics)


def eval_loss(step: int, value: float, at: float = 200) -> Event:
    metrics = {"eval_loss": value, "eval_runtime": 0.1, "epoch": step / 10}
    return Event(at=at, message=str(metrics), step=step, metrics=metrics)


def tell(
    fine_tune: FineTune, told: Iterable[Event], attempt: str = "000001.aa", resumed_at: int = 0
) -> Path:
    """Write the events of an attempt; return their file."""
    path = fine_tune.directory / ATTEMPTS / attempt / EVENTS
    path.parent.mkdir(parents=True)
    lines = [Resumed(resumed_at=resumed_at), *told]
    path.write_text("".join(f"{line.model_dump_json()}\n" for line in lines))
    return path
