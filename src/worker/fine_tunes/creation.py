"""Creates fine-tunes: validates the requests, and stores their rows as files.

Rows come with the job, or from a source that the caller names: an uploaded file, a path on the
volume, or a URL.
"""

import asyncio
import importlib.util
from collections.abc import Callable, Container
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from worker.engine import Model
from worker.errors import InvalidInput, field_error
from worker.files import FILE_PREFIX, Files
from worker.fine_tunes.hyperparameters import parse_hyperparameters
from worker.fine_tunes.record import FineTune, FineTunes, StoredFineTune
from worker.job.fine_tune import FineTuneRequest, FineTuneSpec
from worker.json_lines import encode_unchecked_line
from worker.media.fetcher import GENERIC_TYPES, ContentTypes, UnusableURL, WebFetcher
from worker.settings import Settings
from worker.validation import name_field_in_errors
from worker.volume import ids, translate_os_errors

# Python package of Weights & Biases.
_WANDB_PACKAGE = "wandb"

PURPOSE = FineTunes.input_purpose
ROW_TYPES = ContentTypes(
    (
        *("text/csv", "text/plain", "text/x-csv", "text/comma-separated-values"),
        *("application/csv", "application/vnd.ms-excel", "application/json"),
        *("application/jsonl", "application/x-jsonl", "application/jsonlines"),
        *("application/x-jsonlines", "application/x-ndjson", "application/ndjson", *GENERIC_TYPES),
    ),
    "CSV or JSONL",
)
URL_SCHEMES = ("http://", "https://")
# Seconds for fetching a file.
FETCH_TIMEOUT_S = 120.0
MAX_FILE_NAME_LENGTH = 255
# Maximum number of concurrent fetches of rows. They have their own threads, because a slow host
# occupies a thread for minutes.
_MAX_FETCHES = 2
_fetch_executor = ThreadPoolExecutor(_MAX_FETCHES, thread_name_prefix="fine-tune-rows")


@dataclass(frozen=True, slots=True)
class FineTuneCreator:
    """Creates fine-tunes of a model."""

    fine_tunes: FineTunes
    model: Model
    fetcher: WebFetcher | None  # for ``ROW_TYPES``; None: URLs are not fetched
    has_wandb_key: bool = False  # of this worker, for Weights & Biases

    @classmethod
    def from_settings(
        cls, fine_tunes: FineTunes, model: Model, settings: Settings
    ) -> "FineTuneCreator":
        fetcher = (
            WebFetcher(model.media_hosts, types=ROW_TYPES) if settings.allow_remote_media else None
        )
        return cls(fine_tunes, model, fetcher, has_wandb_key=settings.wandb_api_key is not None)

    async def create_in_thread(
        self, request: FineTuneRequest, id: str, adapters: Container[str] = ()
    ) -> FineTune:
        path = request.training_path if isinstance(request, FineTuneSpec) else None
        sources = (request.training_file, request.validation_file, path)
        executor = _fetch_executor if any(map(_is_url, sources)) else None
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
        model_directory(self.model)
        base = self.model.names[0]
        if request.model not in (None, *self.model.names, self.model.source):
            reason = f"there is no base model {request.model!r}; this worker has {base}"
            if request.model in adapters:
                reason = (
                    f"{request.model!r} is an adapter: a fine-tune begins with a base model, {base}"
                )
            raise field_error("model", reason)
        if request.wandb_options is not None:
            if importlib.util.find_spec(_WANDB_PACKAGE) is None:
                reason = f"this worker has no package {_WANDB_PACKAGE}: leave the integration out"
                raise field_error("integrations", reason)
            if not self.has_wandb_key:
                reason = (
                    "this worker has no key of Weights & Biases: its operator sets WANDB_API_KEY"
                )
                raise field_error("integrations", reason)
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
                wandb=request.wandb_options,
            )
        )

    def _store_rows(self, request: FineTuneRequest, id: str) -> tuple[str, str | None]:
        """Store the rows if necessary; return the ids of the training and the validation file."""
        # If the request was sent twice, its rows are stored, and a URL may have other content now.
        is_repeated = self.fine_tunes.exists(id)
        derive_id = self.fine_tunes.volume.location.derive_id
        training_id, validation_id = (
            derive_id(FILE_PREFIX, id, field) for field in ("training", "validation")
        )
        spec = request if isinstance(request, FineTuneSpec) else None
        if spec and spec.rows is not None:
            # Invalid rows are reported later, with the numbers of their lines.
            lines, name = map(encode_unchecked_line, spec.rows), f"{training_id}.jsonl"
            with name_field_in_errors("rows"):
                self.fine_tunes.files.receive(lines, filename=name, purpose=PURPOSE, id=training_id)
            training = training_id
        else:
            field, source = "training_file", request.training_file or ""
            if spec and spec.training_path is not None:
                field, source = "training_path", spec.training_path
            training = self._find_or_create_file(
                field, source, training_id, is_repeated=is_repeated
            )
        if request.validation_file is None:
            return training, None
        validation = self._find_or_create_file(
            "validation_file", request.validation_file, validation_id, is_repeated=is_repeated
        )
        return training, validation

    def _find_or_create_file(self, field: str, source: str, id: str, *, is_repeated: bool) -> str:
        """Return the id of the file for a source; create the file if necessary.

        Args:
            field: Field of the request that names the source.
            source: Id of a file, which is returned unchecked; path on the volume; or URL.
            id: Id for a new file.
            is_repeated: Whether the content of a URL is stored, and must not be fetched again.

        Raises:
            RequestError: The source is not available; the error names the field.
            VolumeError: The volume fails.
        """
        files = self.fine_tunes.files
        with name_field_in_errors(field):
            is_plain = source.startswith(FILE_PREFIX) and not {".", "/"} & set(source)
            if is_plain or ids.is_id(FILE_PREFIX, source):
                return source
            if not _is_url(source):
                return files.add_volume_file(source, purpose=PURPOSE, id=id).id
            if is_repeated:
                return id
            if self.fetcher is None:
                raise InvalidInput(
                    "this worker fetches nothing from addresses (ALLOW_REMOTE_MEDIA=0): "
                    "upload the file to /v1/files, and pass its id"
                )
            files.quota.check_file_count()
            with files.create(id, _url_file_name(source), PURPOSE) as write:
                # A separate event loop, because writes to the volume may block.
                asyncio.run(_download(self.fetcher, source, _FileBudget(files), write))
            return id


def _is_url(source: str | None) -> bool:
    return source is not None and source.lower().startswith(URL_SCHEMES)


def _url_file_name(url: str) -> str:
    """Return the last component of the URL's path, without the query."""
    try:
        name = PurePosixPath(unquote(urlsplit(url).path, errors="replace")).name
    except ValueError:
        name = ""
    return name[-MAX_FILE_NAME_LENGTH:] or "rows"


@dataclass(slots=True)
class _FileBudget:
    """Limits the bytes of a file that is being fetched."""

    files: Files
    bytes: int = 0

    def check_bytes(self, count: int) -> None:
        if self.bytes + count > self.files.max_bytes:
            raise self.files.too_large_error()

    def add_bytes(self, count: int) -> None:
        self.check_bytes(count)
        self.bytes += count


async def _download(
    fetcher: WebFetcher, url: str, budget: _FileBudget, write: Callable[[bytes], object]
) -> None:
    def write_chunk(chunk: bytes) -> None:
        with translate_os_errors():
            write(chunk)

    try:
        async with asyncio.timeout(FETCH_TIMEOUT_S):
            await fetcher.download(url, budget, write_chunk)
    except UnusableURL as reason:
        raise InvalidInput(f"{reason}; or upload the file to /v1/files, and pass its id") from None
    except TimeoutError:
        raise InvalidInput(
            f"it could not be fetched within {FETCH_TIMEOUT_S:g} seconds: "
            "upload the file to /v1/files, and pass its id"
        ) from None


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
