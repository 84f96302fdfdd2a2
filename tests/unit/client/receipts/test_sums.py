"""Sums of receipts by group, from a directory and from a volume."""

import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.client.conftest import Mount
from unit.client.receipts.conftest import DAY, NEXT_DAY, make_receipt, write_receipts

from llm_worker_client.receipts import ReceiptSums, UsageTotals, sum_receipts
from llm_worker_client.receipts.sums import read_lines
from llm_worker_client.volume import VolumeError

COUNTS = ("requests", "failed", "prompt_tokens", "cached_tokens", "completion_tokens")


def tokens(prompt: int, cached: int, completion: int) -> dict[str, int]:
    return {"prompt": prompt, "cached": cached, "completion": completion}


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Return a directory with the receipts of two workers and two days."""
    alice = {"user": "alice", "labels": {"team": "a", "env": "live"}}
    write_receipts(
        tmp_path,
        make_receipt("job1", **alice, tokens=tokens(1, 0, 2), gpu_seconds=0.1, cost_usd=0.01),
        make_receipt("job2", **alice, tokens=tokens(10, 5, 20), gpu_seconds=0.2, cost_usd=0.02),
    )
    write_receipts(
        tmp_path,
        make_receipt(
            "job3",
            **{"model": "tuned", "status": 499, "worker": {"id": "w2"}, "route": "raw"},
            **{"labels": {"team": "b"}, "tokens": tokens(100, 0, 200), "gpu_seconds": 0.4},
            **{"cost_usd": ..., "first_token_ms": None},
        ),
        name="w2-00000000.jsonl",
    )
    write_receipts(
        tmp_path,
        make_receipt(
            "job4",
            **{"model": None, "status": 503, "batch": "batch_1", "cost_usd": 0.0, "gpu_seconds": 0},
            **{"tokens": tokens(0, 0, 0), "first_token_ms": None, "queue_ms": None},
        ),
        day=NEXT_DAY,
    )
    return tmp_path


ALICE = (2, 0, 11, 5, 22, 0.3, 0.03)
TUNED = (1, 1, 100, 0, 200, 0.4, None)
BATCH = (1, 1, 0, 0, 0, 0.0, 0.0)
W1 = (3, 1, 11, 5, 22, 0.3, 0.03)
OF_DAY = (3, 1, 111, 5, 222, 0.7, 0.03)
NO_USER = (2, 2, 100, 0, 200, 0.4, 0.0)


def sums_of(totals: UsageTotals) -> tuple[Any, ...]:
    return (*(getattr(totals, name) for name in COUNTS), totals.gpu_seconds, totals.cost_usd)


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("model", {("-",): BATCH, ("demo",): ALICE, ("tuned",): TUNED}),
        ("user", {("-",): NO_USER, ("alice",): ALICE}),
        (
            "label",
            {("-",): BATCH, ("env=live",): ALICE, ("team=a",): ALICE, ("team=b",): TUNED},
        ),
        ("label:team", {("-",): BATCH, ("a",): ALICE, ("b",): TUNED}),
        ("batch", {("-",): OF_DAY, ("batch_1",): BATCH}),
        ("worker", {("w1",): W1, ("w2",): TUNED}),
        ("route", {("/v1/chat/completions",): W1, ("raw",): TUNED}),
        ("status", {("200",): ALICE, ("499",): TUNED, ("503",): BATCH}),
        ("day", {("2026-11-27",): OF_DAY, ("2026-11-28",): BATCH}),
        (
            "day worker",
            {
                ("2026-11-27", "w1"): ALICE,
                ("2026-11-27", "w2"): TUNED,
                ("2026-11-28", "w1"): BATCH,
            },
        ),
    ],
)
def test_receipts_are_summed_exactly_by_each_field(
    volume: Path, by: str, expected: dict[tuple[str, ...], Any]
) -> None:
    found = sum_receipts(volume, [NEXT_DAY, DAY, DAY], by.split())
    assert {key: sums_of(totals) for key, totals in found.groups.items()} == expected
    assert sums_of(found.total) == (4, 2, 111, 5, 222, 0.7, 0.03)
    assert found.total.requests_with_cost == 3
    assert (found.days, found.repeated_requests, found.skipped_lines) == ((DAY, NEXT_DAY), 0, 0)


def test_the_receipts_on_a_volume_have_the_same_sums_as_in_a_directory(
    volume: Path, mount: Mount
) -> None:
    (volume / "worker/receipts/2026-11-27/notes.txt").write_text("not JSON\n")
    expected = sum_receipts(volume, [DAY, NEXT_DAY], ["user", "day"])
    assert (expected.total.requests, expected.skipped_lines) == (4, 0)
    with mount.open() as remote:
        for path in volume.rglob("*.*"):
            remote.upload(path, str(path.relative_to(volume)))
    # Lines are longer than blocks.
    with mount.open(part_size=100) as remote:
        assert sum_receipts(remote, [DAY, NEXT_DAY], ["user", "day"]) == expected


@pytest.mark.parametrize(
    "line",
    [
        json.dumps(make_receipt())[:70],
        "\0" * 100,
        "[]",
        json.dumps(make_receipt(tokens=tokens(-1, 0, 0))),
        json.dumps(make_receipt(gpu_seconds=math.nan)),
        json.dumps(make_receipt(status="200")),
        json.dumps(make_receipt(labels={"team": 1})),
        json.dumps(make_receipt(total_ms=...)),
        "x" * (2**20 + 1),
    ],
)
def test_incomplete_and_damaged_lines_are_skipped_and_counted(tmp_path: Path, line: str) -> None:
    path = write_receipts(tmp_path, make_receipt("job1"))
    with path.open("a") as file:
        file.write(f"{line}\n\n")
    write_receipts(tmp_path, make_receipt("job2"))
    with path.open("a") as file:
        file.write(line)
    found = sum_receipts(tmp_path, [DAY])
    assert (found.total.requests, found.skipped_lines) == (2, 2)
    assert (found.damaged_lines, found.incomplete_lines) == (1, 1)


@pytest.mark.parametrize("character", [b"{", b" "])
@pytest.mark.parametrize("size", [2**20 + 1, 2**22, 2**23 + 7])
def test_a_line_of_any_length_is_one_line_and_takes_little_memory(
    tmp_path: Path, character: bytes, size: int
) -> None:
    receipt = json.dumps(make_receipt()).encode()
    content = character * size + receipt + b"\n" + receipt + b"\n" + character * size
    write_receipts(tmp_path).write_bytes(content)
    assert max(len(line) for line in read_lines(tmp_path, DAY)) <= 2**21 + len(receipt)
    found = sum_receipts(tmp_path, [DAY])
    # A line of up to two blocks may be read whole, and white space does no harm.
    is_whole = character == b" " and size < 2**21
    assert found.total.requests == 1 + is_whole
    assert (found.damaged_lines, found.incomplete_lines) == (not is_whole, 1)


def test_retried_requests_count_each_time_and_their_number_is_reported(tmp_path: Path) -> None:
    write_receipts(tmp_path, *(make_receipt(f"job{n}") for n in range(1000)))
    write_receipts(tmp_path, *(make_receipt(f"job{n}") for n in range(7)), day=NEXT_DAY)
    write_receipts(tmp_path, make_receipt("job1"), name="w2-00000000.jsonl")
    found = sum_receipts(tmp_path, [DAY, NEXT_DAY])
    assert (found.total.requests, found.repeated_requests) == (1008, 8)


def test_statuses_from_400_on_count_as_failed(tmp_path: Path) -> None:
    statuses = [200, 206, 399, 400, 499, 503]
    write_receipts(tmp_path, *(make_receipt(str(status), status=status) for status in statuses))
    assert sum_receipts(tmp_path, [DAY]).total.failed == 3


def test_an_unknown_field_is_an_error_that_lists_the_fields(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="label:NAME, not 'label:'"):
        sum_receipts(tmp_path, [DAY], ["label:"])


def test_a_directory_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(VolumeError, match="there is no such directory"):
        sum_receipts(tmp_path / "missing", [DAY])
    path = write_receipts(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(VolumeError, match=rf"{path}: Is a directory"):
        sum_receipts(tmp_path, [DAY])


TEXTS = st.sampled_from(["a", "b", "-", "c=d", "é", ""])
RECEIPTS = st.builds(
    make_receipt,
    id=TEXTS,
    model=st.none() | TEXTS,
    user=st.just(...) | TEXTS,
    labels=st.just(...) | st.dictionaries(TEXTS, TEXTS, max_size=3),
    batch=st.just(...) | TEXTS,
    status=st.sampled_from([200, 400, 499, 503]),
    worker=st.builds(lambda id: {"id": id}, TEXTS),
    route=st.none() | TEXTS,
    tokens=st.builds(tokens, *[st.integers(0, 10**6)] * 3),
    gpu_seconds=st.integers(0, 10**9).map(lambda micros: micros / 10**6),
    cost_usd=st.just(...) | st.integers(0, 10**9).map(lambda units: units / 10**9),
)
# A receipt is in exactly one group of each of these.
SINGLE_FIELDS = st.lists(
    st.sampled_from("model user label:a label:c=d batch worker route status day".split()),
    max_size=3,
)


def exact_sums(totals: UsageTotals) -> list[int]:
    """Return the sums as whole numbers, which have no rounding errors."""
    amounts = (totals.gpu_seconds, totals.cost_usd or 0)
    counts = [getattr(totals, name) for name in (*COUNTS, "requests_with_cost")]
    return [*counts, *(round(amount * 10**9) for amount in amounts)]


def sum_in_new_directory(receipts: list[dict[str, Any]], by: list[str]) -> ReceiptSums:
    with TemporaryDirectory() as folder:
        write_receipts(Path(folder), *receipts[::2])
        write_receipts(Path(folder), *receipts[1::2], day=NEXT_DAY)
        return sum_receipts(Path(folder), [DAY, NEXT_DAY], by)


@given(st.lists(RECEIPTS, max_size=12), SINGLE_FIELDS)
@settings(max_examples=40, deadline=None)
def test_the_sums_of_the_groups_of_any_fields_equal_the_total(
    receipts: list[dict[str, Any]], by: list[str]
) -> None:
    found = sum_in_new_directory(receipts, by)
    columns = zip(*map(exact_sums, found.groups.values()), strict=True)
    assert [sum(column) for column in columns] == (exact_sums(found.total) if receipts else [])
    assert found.total.requests == len(receipts)


@given(st.lists(st.floats(0.01, 10**7), min_size=1, max_size=50))
@settings(max_examples=40, deadline=None)
def test_percentiles_are_those_of_the_nearest_rank_within_1_percent(times: list[float]) -> None:
    receipts = [make_receipt(first_token_ms=ms / 2, total_ms=ms) for ms in times]
    total = sum_in_new_directory(receipts, ["model"]).total
    ordered = sorted(times)
    for share, first, whole in (
        (0.5, total.first_token_ms_p50, total.total_ms_p50),
        (0.99, total.first_token_ms_p99, total.total_ms_p99),
    ):
        exact = ordered[math.ceil(share * len(times)) - 1]
        assert whole == pytest.approx(exact, rel=0.01)
        assert first == pytest.approx(exact / 2, rel=0.01)


def test_only_the_receipts_of_the_endpoint_count(tmp_path: Path) -> None:
    workers = [{"id": "w1", "endpoint": "ep1"}, {"id": "w2", "endpoint": "ep2"}, {"id": "w3"}]
    write_receipts(tmp_path, *(make_receipt(worker["id"], worker=worker) for worker in workers))
    found = sum_receipts(tmp_path, [DAY], ["worker"], endpoint="ep1")
    assert [*found.groups] == [("w1",), ("w3",)]
    assert sum_receipts(tmp_path, [DAY]).total.requests == 3
