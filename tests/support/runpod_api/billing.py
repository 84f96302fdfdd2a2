"""The platform's bills for endpoints, by day."""

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta

from support.runpod_api.endpoints import Body, Refusal

_AMOUNTS = ("totalAmount", "gpuAmount", "cpuAmount", "diskAmount", "feeAmount")


def bill(endpoint: str, day: date, gpu: float, disk: float = 0, fee: float = 0) -> Body:
    """Return an endpoint's record for a day, with amounts in USD."""
    amounts = zip(_AMOUNTS, (gpu + disk + fee, gpu, 0, disk, fee), strict=True)
    times = {"startTime": f"{day}T00:00:00Z", "endTime": f"{day + timedelta(1)}T00:00:00Z"}
    return {"serverlessId": endpoint, **times, **dict(amounts)}


def list_bills(bills: Iterable[Body], query: dict[str, str]) -> Body:
    """Return the records of a range of days, as the platform's document describes them."""
    if query.get("bucketSize") != "day" or not {"startTime", "endTime"} <= query.keys():
        raise Refusal(400, "the tests' platform has daily bills between two times only")
    start, end = _parse(query["startTime"]), _parse(query["endTime"])
    endpoint = query.get("serverlessId")
    records = [
        one
        for one in bills
        if start <= _parse(one["startTime"]) < end and endpoint in (None, one["serverlessId"])
    ]
    return {
        "records": records,
        "metadata": {
            "query": query,
            "recordCount": len(records),
            "totals": {name: sum(one[name] for one in records) for name in _AMOUNTS},
            "uniqueServerlessCount": len({one["serverlessId"] for one in records}),
        },
    }


def _parse(time: str) -> datetime:
    return datetime.fromisoformat(time).astimezone(UTC)
