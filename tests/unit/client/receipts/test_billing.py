"""Receipts' costs in comparison with the platform's bills."""

import csv
import json
from datetime import date
from pathlib import Path

import pytest
from support.runpod_api.server import KEY, Fault, Runpod, bill
from unit.client.receipts.conftest import DAY, NEXT_DAY, Run, make_receipt, write_receipts

LATER = date(2026, 11, 30)


@pytest.fixture
def flags(runpod: Runpod, tmp_path: Path) -> list[str]:
    """Return the flags for a directory with receipts and the bills for their days."""
    for day in (DAY, NEXT_DAY):
        write_receipts(
            tmp_path,
            make_receipt("job1", gpu_seconds=1000.5, cost_usd=0.3),
            make_receipt("job2", gpu_seconds=2000, cost_usd=0.6),
            day=day,
        )
    runpod.bills = [
        bill("ep1", date(2026, 11, 26), 100),
        bill("ep1", DAY, 1.2, disk=0.25, fee=0.125),
        bill("ep1", NEXT_DAY, 1.0),
        bill("ep1", LATER, 10),
        bill("ep2", DAY, 1000),
    ]
    words = ["--directory", str(tmp_path), "--reconcile", "--api-url", f"{runpod.url}/v2"]
    return [*words, "--endpoint", "ep1"]


def test_the_remainder_of_the_bills_is_an_amount_and_a_share(run: Run, flags: list[str]) -> None:
    status, out, err = run(*flags)
    assert (status, out.splitlines()[-3:], err) == (
        0,
        [
            "billed for ep1: 1.5750 USD (GPU 1.2000, CPU 0.0000, disk 0.2500, fee 0.1250)",
            "receipts: 0.9000 USD for 3,000.500 GPU seconds",
            "remainder: 0.3000 USD of GPU (25.0 %), for starts, idle time and rounding up",
        ],
        "",
    )


def test_only_the_bills_of_the_same_endpoint_and_days_count(run: Run, flags: list[str]) -> None:
    days = ("--day", str(DAY), "--day", str(LATER))
    _, out, _ = run(*flags, *days, "--json")
    assert json.loads(out)["reconciliation"] == {
        **{"endpoint": "ep1", "billed_usd": 11.575, "billed_gpu_usd": 11.2, "billed_cpu_usd": 0},
        **{"billed_disk_usd": 0.25, "billed_fee_usd": 0.125, "receipts_usd": 0.9},
        **{"receipts_gpu_seconds": 3000.5, "remainder_usd": 10.3, "remainder_percent": 91.96},
    }
    _, out, _ = run(*flags, "--from", DAY, "--to", NEXT_DAY, "--json")
    assert json.loads(out)["reconciliation"]["billed_gpu_usd"] == 2.2


def test_the_endpoints_id_may_come_from_the_environment(
    run: Run, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNPOD_ENDPOINT_ID", "ep2")
    _, out, _ = run(*flags[:-2], "--json")
    assert json.loads(out)["reconciliation"]["billed_usd"] == 1000


def test_an_endpoint_without_bills_has_no_share(run: Run, flags: list[str]) -> None:
    _, out, _ = run(*flags, "--endpoint", "ep3")
    assert out.splitlines()[-1].startswith("remainder: -0.9000 USD of GPU, for starts")


def test_receipts_without_costs_have_no_remainder(run: Run, flags: list[str]) -> None:
    write_receipts(Path(flags[1]), make_receipt(cost_usd=...), day=LATER)
    status, out, _ = run(*flags, "--day", LATER)
    assert (status, out.splitlines()[-1]) == (
        0,
        "receipts: 0.100 GPU seconds, without a cost: set GPU_PRICE_PER_SECOND on the endpoint",
    )
    _, out, _ = run(*flags, "--day", LATER, "--json")
    found = json.loads(out)["reconciliation"]
    assert (found["receipts_usd"], found["remainder_usd"], found["remainder_percent"]) == (
        *(None, None, None),
    )


def test_csv_is_not_mixed_with_the_bills(run: Run, flags: list[str]) -> None:
    _, out, err = run(*flags, "--csv")
    assert [row["model"] for row in csv.DictReader(out.splitlines())] == ["demo"]
    assert "billed for ep1: 1.5750 USD" in err


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (403, "GET /v2/billing/serverless: 403 Forbidden: planted"),
        (200, "the platform's bills do not have the documented fields"),
    ],
)
def test_an_error_of_the_platform_is_reported(
    run: Run, runpod: Runpod, flags: list[str], status: int, message: str
) -> None:
    runpod.faults.append(Fault("GET", status))
    found = run(*flags)
    assert (found[:2], message in found[2]) == ((1, ""), True)
    assert KEY not in found[2]
