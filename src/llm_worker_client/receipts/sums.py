"""Reads receipts on a volume or in a copy of it, and sums them by group.

Of each receipt, only a hash of its id stays in memory.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

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
# Value of a group whose receipts lack the field.
MISSING = "-"
# Statuses from this one on count as failed. 499, a cancelled job, is one of them.
_FIRST_FAILURE_STATUS = 400
# Amounts are summed in units of 1e-9, so that sums are exact and independent of the order.
_UNITS = 10**9
# Buckets of durations for each factor of e. Their limits grow by 2 %.
_BUCKETS = 1 / math.log(1.02)
_MIN_MS = 0.001


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
    """The receipt of one job, or of one line of a batch, as far as it is summed."""

    id: str
    route: str | None  # such as "/v1/chat/completions" or "raw"
    model: str | None  # the base model or adapter that answered; None if none did
    status: int  # of HTTP; 499 if the job was cancelled
    first_token_ms: _Amount | None  # None if there was no output
    total_ms: _Amount
    tokens: TokenCounts
    gpu_seconds: _Amount  # the request's share of the GPUs' time, in seconds of one GPU
    cost_usd: _Amount | None = None  # None if the worker knew no price
    worker: ReceiptWorker
    user: str | None = None  # the caller's name of its user
    labels: dict[str, str] = {}  # the caller's metadata
    batch: str | None = None  # the batch's id; None for a job


GroupValues = Callable[[Receipt, date], Iterable[str]]

_GROUP_VALUES: dict[str, GroupValues] = {
    "model": lambda receipt, _: (receipt.model or MISSING,),
    "user": lambda receipt, _: (receipt.user or MISSING,),
    "label": lambda receipt, _: [f"{k}={v}" for k, v in receipt.labels.items()] or (MISSING,),
    "batch": lambda receipt, _: (receipt.batch or MISSING,),
    "worker": lambda receipt, _: (receipt.worker.id,),
    "route": lambda receipt, _: (receipt.route or MISSING,),
    "status": lambda receipt, _: (str(receipt.status),),
    "day": lambda _, day: (str(day),),
}
GROUP_FIELDS = ", ".join([*_GROUP_VALUES, "label:NAME"])


def read_lines(source: "Path | Volume", day: date) -> Iterator[bytes]:
    """Yield the lines of all receipts of a day (UTC), with their line breaks.

    Some may be damaged. The last line of a file may be incomplete, without a line break: its worker
    was killed while it wrote the line, or is writing it.
    """
    for blocks in _open_files(source, day):
        rest = b""
        for block in blocks:
            *lines, rest = (rest + block).split(b"\n")
            yield from (line + b"\n" for line in lines if line)
            if len(rest) > _MAX_LINE_SIZE:
                rest = _DAMAGED
        if rest:
            yield rest


def _open_files(source: "Path | Volume", day: date) -> Iterator[Iterator[bytes]]:
    """Yield the content of each file of a day, in blocks."""
    if not isinstance(source, Path):
        for file in source.list(f"{DIRECTORY}/{day}/"):
            if file.key.endswith(".jsonl"):
                yield source.read(file)
        return
    if not source.is_dir():
        raise VolumeError(f"{source}: there is no such directory")
    folder = source / DIRECTORY / str(day)
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


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """The sums of a group of receipts.

    Percentiles are those of a histogram: the nearest rank, with an error of at most 1 %. They are
    None if no receipt has the time.
    """

    requests: int
    failed: int  # those with a status of 400 or more; cancelled jobs are among them
    prompt_tokens: int
    cached_tokens: int  # those of the prompts that were not computed again
    completion_tokens: int
    gpu_seconds: float  # in seconds of one GPU
    cost_usd: float | None  # None if no receipt has a cost
    requests_with_cost: int
    first_token_ms_p50: float | None
    first_token_ms_p99: float | None
    total_ms_p50: float | None
    total_ms_p99: float | None


@dataclass(frozen=True, slots=True)
class ReceiptSums:
    """The sums of the receipts of some days."""

    days: tuple[date, ...]  # in order
    by: tuple[str, ...]  # the fields by which the receipts are grouped
    # By the values of these fields, in their order. If `label` is one of the fields, a receipt with
    # several labels is in several groups.
    groups: dict[tuple[str, ...], UsageTotals]
    total: UsageTotals
    # Receipts with the id of an earlier one, because the request was answered again: the platform
    # retried the job, or the batch's worker died. All of them count: each try used the GPU.
    repeated_requests: int
    skipped_lines: int  # lines that are no receipts: incomplete or damaged ones
    # Those that are the last line of a file, without a line break: their worker was killed while it
    # wrote the line, or is writing it.
    incomplete_lines: int

    @property
    def damaged_lines(self) -> int:
        """Number of complete lines that are no receipts; the sums lack the costs of a request."""
        return self.skipped_lines - self.incomplete_lines


def sum_receipts(
    source: "Path | Volume",
    days: Iterable[date],
    by: Sequence[str] = ("model",),
    endpoint: str | None = None,
) -> ReceiptSums:
    """Return the sums of the receipts of some days.

    Args:
        source: A volume, or a directory with the files of one, such as a mounted volume.
        days: The days (UTC) on which the receipts were written.
        by: Fields to group by: ``model``, ``user``, ``label``, ``label:NAME``, ``batch``,
            ``worker``, ``route``, ``status`` or ``day``. Several fields group by all combinations.
        endpoint: Id of the only endpoint whose receipts count; None for all endpoints.

    Raises:
        ValueError: If a field to group by is unknown.
        VolumeError: If the volume or the directory can't be read.
    """
    days, by = tuple(sorted(set(days))), tuple(dict.fromkeys(by))
    group_values = [find_group_values(name) for name in by]
    total, skipped_lines, incomplete_lines, repeated_requests = _GroupSums(), 0, 0, 0
    groups = defaultdict[tuple[str, ...], _GroupSums](_GroupSums)
    # Hashes take less memory than ids.
    hashes = set[int]()
    for day in days:
        for line in read_lines(source, day):
            try:
                receipt = Receipt.model_validate_json(line)
            except ValidationError:
                skipped_lines += 1
                incomplete_lines += not line.endswith(b"\n")
                continue
            if endpoint is not None and receipt.worker.endpoint not in (None, endpoint):
                continue
            total.add(receipt)
            for key in product(*[values(receipt, day) for values in group_values]):
                groups[key].add(receipt)
            repeated_requests += hash(receipt.id) in hashes
            hashes.add(hash(receipt.id))
    totals = {key: groups[key].to_totals() for key in sorted(groups)}
    counts = (repeated_requests, skipped_lines, incomplete_lines)
    return ReceiptSums(days, by, totals, total.to_totals(), *counts)


def find_group_values(name: str) -> GroupValues:
    """Return the function that finds a receipt's values of a field; ``ValueError`` without one."""
    kind, _, label = name.partition(":")
    if kind == "label" and label:
        return lambda receipt, _: (receipt.labels.get(label, MISSING),)
    if name not in _GROUP_VALUES:
        raise ValueError(f"one of {GROUP_FIELDS}, not {name!r}")
    return _GROUP_VALUES[name]


class _DurationHistogram:
    """Counts durations in buckets whose limits grow by 2 %."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts = defaultdict[int, int](int)

    def add(self, ms: float) -> None:
        self._counts[math.ceil(math.log(max(ms, _MIN_MS)) * _BUCKETS)] += 1

    def percentile(self, share: float) -> float | None:
        """Return the middle of the bucket with the percentile; None if there are no times."""
        rank = math.ceil(share * sum(self._counts.values()))
        for bucket in sorted(self._counts):
            rank -= self._counts[bucket]
            if rank <= 0:
                return math.exp((bucket - 0.5) / _BUCKETS)
        return None


@dataclass(slots=True)
class _GroupSums:
    """The sums of a group while receipts are added; amounts are in units of 1e-9."""

    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    gpu_time: int = 0
    cost: int = 0
    requests_with_cost: int = 0
    first_token_ms: _DurationHistogram = field(default_factory=_DurationHistogram)
    total_ms: _DurationHistogram = field(default_factory=_DurationHistogram)

    def add(self, receipt: Receipt) -> None:
        self.requests += 1
        self.failed += receipt.status >= _FIRST_FAILURE_STATUS
        self.prompt_tokens += receipt.tokens.prompt
        self.cached_tokens += receipt.tokens.cached
        self.completion_tokens += receipt.tokens.completion
        self.gpu_time += round(receipt.gpu_seconds * _UNITS)
        if receipt.cost_usd is not None:
            self.cost += round(receipt.cost_usd * _UNITS)
            self.requests_with_cost += 1
        if receipt.first_token_ms is not None:
            self.first_token_ms.add(receipt.first_token_ms)
        self.total_ms.add(receipt.total_ms)

    def to_totals(self) -> UsageTotals:
        return UsageTotals(
            self.requests,
            self.failed,
            self.prompt_tokens,
            self.cached_tokens,
            self.completion_tokens,
            self.gpu_time / _UNITS,
            self.cost / _UNITS if self.requests_with_cost else None,
            self.requests_with_cost,
            self.first_token_ms.percentile(0.5),
            self.first_token_ms.percentile(0.99),
            self.total_ms.percentile(0.5),
            self.total_ms.percentile(0.99),
        )
