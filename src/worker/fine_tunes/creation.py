"""Creates fine-tunes: validates the requests, and stores their rows as files."""

import asyncio
import importlib.util
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from worker.engine import Model
from worker.errors import InvalidInput, field_error
from worker.files import FILE_PREFIX
from worker.fine_tunes.hyperparameters import parse_hyperparameters
from worker.fine_tunes.record import FineTune, FineTunes
from worker.fine_tunes.request import StoredFineTune
from worker.fine_tunes.sources import ROW_TYPES, RowSources, is_url
from worker.job.fine_tune import FineTuneRequest, FineTuneSpec
from worker.media.fetcher import WebFetcher
from worker.settings import Settings

# Python package of Weights & Biases.
_WANDB_PACKAGE = "wandb"
# Maximum number of concurrent fetches of rows. They have their own threads, because a slow host
# occupies a thread for minutes.
_MAX_FETCHES = 2
_fetch_executor = ThreadPoolExecutor(_MAX_FETCHES, thread_name_prefix="fine-tune-rows")


@dataclass(frozen=True, slots=True)
class FineTuneCreator:
    """Creates fine-tunes of a model."""

    fine_tunes: FineTunes
    model: Model
    sources: RowSources
    has_wandb_key: bool = False  # of this worker, for Weights & Biases

    @classmethod
    def from_settings(
        cls, fine_tunes: FineTunes, model: Model, settings: Settings
    ) -> "FineTuneCreator":
        fetcher = (
            WebFetcher(model.media_hosts, types=ROW_TYPES) if settings.allow_remote_media else None
        )
        sources = RowSources(fine_tunes.files, fetcher)
        return cls(fine_tunes, model, sources, has_wandb_key=settings.wandb_api_key is not None)

    async def create_in_thread(
        self, request: FineTuneRequest, id: str, adapters: Container[str] = ()
    ) -> FineTune:
        path = request.training_path if isinstance(request, FineTuneSpec) else None
        sources = (request.training_file, request.validation_file, path)
        executor = _fetch_executor if any(map(is_url, sources)) else None
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(executor, self.create, request, id, adapters)

    def create(self, request: FineTuneRequest, id: str, adapters: Container[str] = ()) -> FineTune:
        """Create a fine-tune, or return the existing one if the request was sent twice.

        This blocks on disks and hosts: call it in a thread. ``adapters`` are the names of the
        served adapters.
        """
        rank = self.model.max_lora_rank
        if rank is None:
            raise InvalidInput(
                "This worker serves no adapters, so nobody could call the result: "
                "its operator has to set ENABLE_LORA=1."
            )
        base, wandb = self._base_model_name(request.model, adapters), self._wandb_options(request)
        values, field = request.raw_hyperparameters, request.hyperparameters_field
        spec = parse_hyperparameters(values, field, max_rank=rank, seed=request.seed)
        self.fine_tunes.check_room_for(id)
        if not self.fine_tunes.exists(id):
            self.fine_tunes.files.quota.check_adapter_count()
        training, validation = self._store_rows(request, id)
        return self.fine_tunes.create(
            StoredFineTune(
                id=id,
                base=base,
                training_file=training,
                validation_file=validation,
                spec=spec,
                suffix=request.suffix,
                metadata=request.metadata,
                wandb=wandb,
            )
        )

    def _base_model_name(self, name: str | None, adapters: Container[str]) -> str:
        names = self.model.names
        model_directory(self.model)
        if name in (None, *names, self.model.source):
            return names[0]
        if name in adapters:
            message = f"{name!r} is an adapter: a fine-tune begins with a base model, {names[0]}"
            raise field_error("model", message)
        raise field_error("model", f"there is no base model {name!r}; this worker has {names[0]}")

    def _wandb_options(self, request: FineTuneRequest) -> dict[str, Any] | None:
        if request.wandb_options is None:
            return None
        if importlib.util.find_spec(_WANDB_PACKAGE) is None:
            message = f"this worker has no package {_WANDB_PACKAGE}: leave the integration out"
            raise field_error("integrations", message)
        if not self.has_wandb_key:
            message = "this worker has no key of Weights & Biases: its operator sets WANDB_API_KEY"
            raise field_error("integrations", message)
        return request.wandb_options

    def _store_rows(self, request: FineTuneRequest, id: str) -> tuple[str, str | None]:
        """Store the rows if necessary; return the ids of the training and the validation file."""
        sources = self.sources
        if self.fine_tunes.exists(id):
            # The request was sent twice: its rows are stored, and a URL may have other content now.
            sources = replace(sources, has_stored_urls=True)
        derive_id = self.fine_tunes.volume.location.derive_id
        training_id, validation_id = (
            derive_id(FILE_PREFIX, id, field) for field in ("training", "validation")
        )
        find_or_create = sources.find_or_create
        spec = request if isinstance(request, FineTuneSpec) else None
        if spec and spec.rows is not None:
            training = sources.store_rows(spec.rows, training_id)
        elif spec and spec.training_path is not None:
            training = find_or_create("training_path", spec.training_path, training_id)
        else:
            training = find_or_create("training_file", request.training_file or "", training_id)
        if request.validation_file is None:
            return training, None
        return training, find_or_create("validation_file", request.validation_file, validation_id)


def model_directory(model: Model) -> Path:
    """Return the absolute path of the directory that a training reads a model from."""
    if "generate" not in model.tasks:
        raise InvalidInput(f"{model.names[0]} can't be fine-tuned: it does not generate text.")
    if model.directory is None or model.quantization is not None:
        raise InvalidInput(
            f"{model.names[0]} can't be fine-tuned: it is quantised, or not read from a "
            "directory. MODEL_NAME has to name the model in its own precision."
        )
    return model.directory.absolute()


def check_base_model(fine_tune: FineTune, model: Model) -> None:
    """Check that a fine-tune has this worker's base model. Reads files: call in a thread."""
    base = fine_tune.request.base
    if base not in model.names:
        raise InvalidInput(
            f"{fine_tune.id} is a fine-tune of {base!r}, and this worker has {model.names[0]}."
        )
