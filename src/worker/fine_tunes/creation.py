"""Creates fine-tunes: what is asked is checked, and the rows are made files."""

import asyncio
import importlib.util
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from worker.engine import Model
from worker.errors import InvalidInput
from worker.files import PREFIX as FILE
from worker.fine_tunes.hyperparameters import hyperparameters
from worker.fine_tunes.record import FineTune, FineTunes
from worker.fine_tunes.request import StoredFineTune
from worker.fine_tunes.sources import ROWS, Sources, is_address
from worker.job.fine_tune import FineTuneRequest, FineTuneSpec
from worker.media.fetcher import Fetcher
from worker.settings import Settings
from worker.volume import ids

# Of Weights & Biases.
_PACKAGE = "wandb"
# A slow host keeps a thread for minutes: one that nothing else waits for.
_FETCHES_AT_ONCE = 2
_fetching = ThreadPoolExecutor(_FETCHES_AT_ONCE, thread_name_prefix="fine-tune-rows")


@dataclass(frozen=True, slots=True)
class Creator:
    """Creates fine-tunes of a model.

    Args:
        fine_tunes: of the volume.
        model: that all begin with.
        sources: makes files of what callers name.
        wandb_key: whether this worker has a key of Weights & Biases.
    """

    fine_tunes: FineTunes
    model: Model
    sources: Sources
    wandb_key: bool = False

    @classmethod
    def of(cls, fine_tunes: FineTunes, model: Model, settings: Settings) -> "Creator":
        fetcher = Fetcher(model.hosts, types=ROWS) if settings.allow_remote_media else None
        sources = Sources(fine_tunes.files, fetcher)
        return cls(fine_tunes, model, sources, wandb_key=settings.wandb_api_key is not None)

    async def acreate(
        self, asked: FineTuneRequest, id: str, adapters: Container[str] = ()
    ) -> FineTune:
        """Create a fine-tune in a thread; see ``create``."""
        path = asked.training_path if isinstance(asked, FineTuneSpec) else None
        named = (asked.training_file, asked.validation_file, path)
        executor = _fetching if any(map(is_address, named)) else None
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(executor, self.create, asked, id, adapters)

    def create(self, asked: FineTuneRequest, id: str, adapters: Container[str] = ()) -> FineTune:
        """Create a fine-tune, or return the one that has its id: the request came twice.

        It waits for disks and hosts: for threads.

        Args:
            asked: the request.
            id: what it will have.
            adapters: the names of those that are served.

        Raises:
            Conflict: another request has this id.
            RequestError: it is refused; naming the field.
            VolumeError: the volume fails.
        """
        rank = self.model.max_lora_rank
        if rank is None:
            raise InvalidInput(
                "This worker serves no adapters, so that nobody could call the result: "
                "its operator sets ENABLE_LORA=1."
            )
        base, wandb = self._base(asked.model, adapters), self._wandb(asked)
        spec = hyperparameters(asked.given, asked.holder, max_rank=rank, seed=asked.seed)
        training, validation = self._rows(asked, id)
        return self.fine_tunes.create(
            StoredFineTune(
                id=id,
                base=base,
                training_file=training,
                validation_file=validation,
                spec=spec,
                suffix=asked.suffix,
                metadata=asked.metadata,
                wandb=wandb,
            )
        )

    def _base(self, name: str | None, adapters: Container[str]) -> str:
        served = self.model.names
        directory_of(self.model)
        if name in (None, *served, self.model.source):
            return served[0]
        if name in adapters:
            message = f"{name!r} is an adapter: a fine-tune begins with a base model, {served[0]}"
            raise _refused("model", message)
        raise _refused("model", f"there is no base model {name!r}; this worker has {served[0]}")

    def _wandb(self, asked: FineTuneRequest) -> dict[str, Any] | None:
        if asked.wandb is None:
            return None
        if importlib.util.find_spec(_PACKAGE) is None:
            message = f"this worker has no package {_PACKAGE}: leave the integration out"
            raise _refused("integrations", message)
        if not self.wandb_key:
            message = "this worker has no key of Weights & Biases: its operator sets WANDB_API_KEY"
            raise _refused("integrations", message)
        return asked.wandb

    def _rows(self, asked: FineTuneRequest, id: str) -> tuple[str, str | None]:
        """Return the ids of the files of rows: to train on, and to validate with."""
        sources = self.sources
        if self.fine_tunes.has(id):
            # What addresses have now counts no more.
            sources = replace(sources, fetched=True)
        training_id, validation_id = (
            ids.derived(FILE, id, field) for field in ("training", "validation")
        )
        spec = asked if isinstance(asked, FineTuneSpec) else None
        if spec and spec.rows is not None:
            training = sources.rows(spec.rows, training_id)
        elif spec and spec.training_path is not None:
            training = sources.file("training_path", spec.training_path, training_id)
        else:
            training = sources.file("training_file", asked.training_file or "", training_id)
        if asked.validation_file is None:
            return training, None
        return training, sources.file("validation_file", asked.validation_file, validation_id)


def _refused(field: str, reason: str) -> InvalidInput:
    return InvalidInput(f"{field}: {reason}", param=field)


def directory_of(model: Model) -> Path:
    """Return the directory that a training reads a model from, as an absolute path.

    Raises:
        InvalidInput: the model can't be trained.
    """
    if "generate" not in model.tasks:
        raise InvalidInput(f"{model.names[0]} can't be fine-tuned: it writes no text.")
    if model.place is None or model.quantization is not None:
        raise InvalidInput(
            f"{model.names[0]} can't be fine-tuned: it is quantised, or not read from a "
            "directory. MODEL_NAME has to name the model in its own precision."
        )
    return model.place.absolute()


def check_base(fine_tune: FineTune, model: Model) -> None:
    """Check that a fine-tune begins with a worker's model. For threads.

    Raises:
        InvalidInput: it begins with another.
    """
    base = fine_tune.request.base
    if base not in model.names:
        raise InvalidInput(
            f"{fine_tune.id} is a fine-tune of {base!r}, and this worker has {model.names[0]}."
        )
