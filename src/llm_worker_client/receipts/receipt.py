"""Receipts of requests, and the lines of their files on a volume or in a copy of it."""

from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field

from llm_worker_client.volume import VolumeError

if TYPE_CHECKING:
    from llm_worker_client.volume import Volume

# From the volume's root; it has a folder for each day, and they have files for each worker.
DIRECTORY = "worker/receipts"
_BLOCK_SIZE = 2**20
# Maximum bytes of a line. Workers limit all texts of a receipt, so that no receipt has as many.
_MAX_LINE_SIZE = 2**20
# Beginning of a longer line, which is no receipt.
_DAMAGED = b"\0"

_Count = Annotated[int, Field(ge=0)]
_Amount = Annotated[float, Field(ge=0)]


class _JsonObject(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


class TokenCounts(_JsonObject):
    """The tokens of a request. ``cached`` is the part of the prompt that was not computed again."""

    prompt: _Count
    cached: _Count
    completion: _Count


class ReceiptWorker(_JsonObject):
    """The worker that answered a request; ``endpoint`` is None if it does not know its endpoint."""

    id: str
    endpoint: str | None = None


class Receipt(_JsonObject):
    """The receipt of one job, or of one line of a batch, as far as it is summed.

    Args:
        id: The id of the job.
        route: The route that answered, such as "/v1/chat/completions" or "raw".
        model: The base model or adapter that answered; None if none did.
        status: The HTTP status; 499 if the job was cancelled.
        first_token_ms: Time until the first output; None if there was none.
        total_ms: Time until the end of the answer.
        tokens: The tokens of the request.
        gpu_seconds: The request's share of the GPUs' time, in seconds of one GPU.
        cost_usd: Its price; None if the worker knew no price.
        worker: The worker that answered.
        user: The caller's name of its user.
        labels: The caller's metadata.
        batch: The id of the batch; None for a job.
    """

    id: str
    route: str | None
    model: str | None
    status: int
    first_token_ms: _Amount | None
    total_ms: _Amount
    tokens: TokenCounts
    gpu_seconds: _Amount
    cost_usd: _Amount | None = None
    worker: ReceiptWorker
    user: str | None = None
    labels: dict[str, str] = {}
    batch: str | None = None


def read_lines(source: "Path | Volume", day: date) -> Iterator[bytes]:
    """Yield the lines of all receipts of a day, with their line breaks.

    Some may be damaged. The last line of a file may be incomplete, without a line break: its worker
    was killed while it wrote the line, or is writing it.

    Args:
        source: A volume, or a directory with the files of one.
        day: The day (UTC) on which the receipts were written.

    Raises:
        VolumeError: If the volume or the directory can't be read.
    """
    if isinstance(source, Path):
        files = _open_directory(source, day)
    else:
        files = (
            source.read(file)
            for file in source.list(f"{DIRECTORY}/{day}/")
            if file.key.endswith(".jsonl")
        )
    for blocks in files:
        yield from _split_lines(blocks)


def _open_directory(directory: Path, day: date) -> Iterator[Iterator[bytes]]:
    if not directory.is_dir():
        raise VolumeError(f"{directory}: there is no such directory")
    folder = directory / DIRECTORY / str(day)
    try:
        paths = sorted(folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise _to_volume_error(error) from None
    yield from (_read_file(path) for path in paths if path.suffix == ".jsonl")


def _read_file(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_SIZE):
                yield block
    except OSError as error:
        raise _to_volume_error(error) from None


def _to_volume_error(error: OSError) -> VolumeError:
    return VolumeError(f"{error.filename}: {error.strerror or type(error).__name__}")


def _split_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file with their line breaks, and without empty lines."""
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in lines if line)
        if len(rest) > _MAX_LINE_SIZE:
            rest = _DAMAGED
    if rest:
        yield rest
