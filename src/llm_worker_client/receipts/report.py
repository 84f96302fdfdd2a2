"""Prints sums of receipts as a table, as JSON and as CSV."""

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from llm_worker_client.receipts.billing import Reconciliation
from llm_worker_client.receipts.sums import ReceiptSums, UsageTotals
from llm_worker_client.terminal import make_printable

# Callers choose users and labels; a longer one is cut in a table.
_MAX_WIDTH = 48
# A spreadsheet would take such a value for a formula.
_FORMULA = re.compile(r"[=+@\t\r]|-.")
_NUMBERS = {
    "requests": ("requests", ",d"),
    "failed": ("failed", ",d"),
    "prompt_tokens": ("prompt", ",d"),
    "cached_tokens": ("cached", ",d"),
    "completion_tokens": ("completion", ",d"),
    "gpu_seconds": ("GPU s", ",.3f"),
    "cost_usd": ("USD", ",.6f"),
    "first_token_ms_p50": ("first p50 ms", ",.1f"),
    "first_token_ms_p99": ("first p99 ms", ",.1f"),
    "total_ms_p50": ("total p50 ms", ",.1f"),
    "total_ms_p99": ("total p99 ms", ",.1f"),
}


def format_table(sums: ReceiptSums) -> str:
    """Return a table with a line for each group, and one for the total."""
    numbers = {**_NUMBERS}
    if sums.total.cost_usd is None:
        del numbers["cost_usd"]
    titles = [title for title, _ in numbers.values()]
    total_keys = ["total", *[""] * len(sums.by)][: len(sums.by)]
    rows = [[*sums.by, *titles]]
    rows += [
        [*map(_shorten, keys), *_format_numbers(totals, numbers)]
        for keys, totals in [*sums.groups.items(), (total_keys, sums.total)]
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if column < len(sums.by) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def format_notes(sums: ReceiptSums) -> Iterator[str]:
    """Yield sentences about receipts that are not in the sums, or that distort them."""
    if sums.damaged_lines:
        yield (
            f"WARNING: damaged lines: {sums.damaged_lines:,}. What their requests have cost is "
            "missing in these sums."
        )
    if sums.incomplete_lines:
        yield (
            f"Incomplete lines at the ends of files: {sums.incomplete_lines:,}. Their workers were "
            "killed while they wrote them, or are writing them."
        )
    if sums.repeated_requests:
        yield f"Retries, which count because they used the GPU: {sums.repeated_requests:,}."
    if sums.total.cost_usd is not None and sums.total.requests_with_cost < sums.total.requests:
        share = 100 * sums.total.requests_with_cost / sums.total.requests
        yield (
            f"{sums.total.requests_with_cost:,} of {sums.total.requests:,} receipts ({share:.1f} %)"
            " have a cost; set GPU_PRICE_PER_SECOND on the endpoint."
        )
    if "label" in sums.by:
        yield "A request with several labels counts in each of their rows, and once in the total."


def format_reconciliation(bill: Reconciliation) -> Iterator[str]:
    """Yield the lines of a comparison with the platform's bills."""
    yield (
        f"billed for {bill.endpoint}: {bill.billed_usd:,.4f} USD (GPU {bill.billed_gpu_usd:,.4f}, "
        f"CPU {bill.billed_cpu_usd:,.4f}, disk {bill.billed_disk_usd:,.4f}, "
        f"fee {bill.billed_fee_usd:,.4f})"
    )
    if bill.receipts_usd is None or bill.remainder_usd is None:
        yield (
            f"receipts: {bill.receipts_gpu_seconds:,.3f} GPU seconds, without a cost: "
            "set GPU_PRICE_PER_SECOND on the endpoint"
        )
        return
    share = "" if bill.remainder_percent is None else f" ({bill.remainder_percent:.1f} %)"
    yield (
        f"receipts: {bill.receipts_usd:,.4f} USD for {bill.receipts_gpu_seconds:,.3f} GPU seconds"
    )
    yield (
        f"remainder: {bill.remainder_usd:,.4f} USD of GPU{share}, for starts, idle time and "
        "rounding up"
    )


def to_json(sums: ReceiptSums, bill: Reconciliation | None) -> str:
    content = {
        "days": [str(day) for day in sums.days],
        "by": sums.by,
        "groups": [row for _, row in _make_rows(sums)],
        "total": asdict(sums.total),
        "repeated_requests": sums.repeated_requests,
        "skipped_lines": sums.skipped_lines,
        "incomplete_lines": sums.incomplete_lines,
        "reconciliation": asdict(bill) if bill else None,
    }
    return json.dumps(content, indent=2, ensure_ascii=False)


def to_csv(sums: ReceiptSums) -> str:
    """Return the groups, without a total, as CSV with a line of titles."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*sums.by, *UsageTotals.__dataclass_fields__])
    for keys, row in _make_rows(sums):
        safe_keys = [f"'{key}" if _FORMULA.match(key) else key for key in keys]
        writer.writerow([*safe_keys, *[*row.values()][len(keys) :]])
    return out.getvalue().rstrip("\n")


def _make_rows(sums: ReceiptSums) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    for keys, totals in sums.groups.items():
        yield keys, dict(zip(sums.by, keys, strict=True)) | asdict(totals)


def _format_numbers(totals: UsageTotals, numbers: dict[str, tuple[str, str]]) -> Iterator[str]:
    for name, (_, form) in numbers.items():
        value = getattr(totals, name)
        yield "-" if value is None else format(value, form)


def _shorten(key: str) -> str:
    text = make_printable(key)
    return text if len(text) <= _MAX_WIDTH else f"{text[: _MAX_WIDTH - 1]}…"
