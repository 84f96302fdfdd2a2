"""Compares the receipts' costs with the platform's bills."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pydantic import BaseModel, ValidationError

from llm_worker_client.deploy.api import Api
from llm_worker_client.deploy.errors import NoResponse
from llm_worker_client.receipts.sums import ReceiptSums

# Decimal places of amounts in USD, which hide the errors of sums of floats.
_DECIMALS = 9


class _BillingRecord(BaseModel):
    """The platform's amounts in USD for an endpoint and a day, with the platform's names."""

    startTime: datetime  # noqa: N815 - the platform's name
    totalAmount: float  # noqa: N815 - the platform's name
    gpuAmount: float  # noqa: N815 - the platform's name
    cpuAmount: float  # noqa: N815 - the platform's name
    diskAmount: float  # noqa: N815 - the platform's name
    feeAmount: float  # noqa: N815 - the platform's name


class _BillingResponse(BaseModel):
    records: list[_BillingRecord]


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The platform's bills for an endpoint, and the part of them that receipts explain, in USD."""

    endpoint: str
    billed_usd: float  # the sum of the next four amounts
    billed_gpu_usd: float  # the platform does not say for how many seconds
    billed_cpu_usd: float
    billed_disk_usd: float
    billed_fee_usd: float
    receipts_usd: float | None  # None if no receipt has a cost
    receipts_gpu_seconds: float  # in seconds of one GPU
    # The part of the amount for GPUs that no receipt explains: starts, idle time, rounding up, and
    # requests without a cost. None without `receipts_usd`.
    remainder_usd: float | None
    remainder_percent: float | None  # of the amount for GPUs; None if that is 0


def reconcile(sums: ReceiptSums, api: Api, endpoint_id: str) -> Reconciliation:
    """Compare the sums of receipts with the platform's bills for an endpoint on the same days."""
    start, end = (
        f"{day}T00:00:00Z" for day in (min(sums.days), max(sums.days) + timedelta(days=1))
    )
    try:
        bills = _BillingResponse.model_validate(api.get_serverless_billing(endpoint_id, start, end))
    except ValidationError:
        raise NoResponse("the platform's bills do not have the documented fields") from None
    # The days may have gaps.
    on_days = [bill for bill in bills.records if bill.startTime.astimezone(UTC).date() in sums.days]
    total, gpu, cpu, disk, fee = (
        round(sum(getattr(bill, name) for bill in on_days), _DECIMALS)
        for name in ("totalAmount", "gpuAmount", "cpuAmount", "diskAmount", "feeAmount")
    )
    cost = sums.total.cost_usd
    remainder = None if cost is None else round(gpu - cost, _DECIMALS)
    percent = None if remainder is None or not gpu else round(100 * remainder / gpu, 2)
    gpu_seconds = sums.total.gpu_seconds
    return Reconciliation(
        endpoint_id, total, gpu, cpu, disk, fee, cost, gpu_seconds, remainder, percent
    )
