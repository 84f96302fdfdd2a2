"""The command `receipts`, which sums the receipts on a network volume or in a copy of it."""

import csv
import io
import json
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_worker_client import account
from llm_worker_client.account import NoApiKey
from llm_worker_client.deploy.api import API_URL, Api
from llm_worker_client.deploy.errors import DeployError, PlanError
from llm_worker_client.files import add_volume_arguments
from llm_worker_client.receipts.billing import Reconciliation, reconcile
from llm_worker_client.receipts.sums import (
    DIRECTORY,
    GROUP_FIELDS,
    ReceiptSums,
    UsageTotals,
    find_group_values,
    sum_receipts,
)
from llm_worker_client.terminal import (
    INTERRUPTED,
    USAGE_ERROR,
    make_printable,
    print_message,
    print_text,
)
from llm_worker_client.volume import VolumeError, VolumeNotConfigured, open_volume

if TYPE_CHECKING:
    from llm_worker_client.volume import Volume

MAX_DAYS = 366
# Exit status if some receipts could not be read.
INCOMPLETE = 3
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


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = (
        f"Set {account.S3_KEY_VARIABLE} and {account.S3_SECRET_VARIABLE} to an S3 API key, "
        "unless the receipts are in a directory. Days are those of UTC."
    )
    add_volume_arguments(parser)
    parser.add_argument(
        "--directory",
        type=Path,
        help=f"a mounted volume or a copy of it, with {DIRECTORY}, instead of a volume",
    )
    parser.add_argument(
        "--day", type=_parse_day, action="append", help="such as 2026-11-27; default: today"
    )
    parser.add_argument("--from", dest="first", type=_parse_day, metavar="DAY", help="first day")
    parser.add_argument("--to", dest="last", type=_parse_day, metavar="DAY", help="default: today")
    parser.add_argument(
        "--by",
        type=_parse_group_field,
        action="append",
        metavar="FIELD",
        help=f"{GROUP_FIELDS}; repeat it to combine fields (default: model)",
    )
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="print JSON")
    formats.add_argument("--csv", action="store_true", help="print the groups as CSV")
    parser.add_argument(
        "--reconcile", action="store_true", help="compare the costs with the platform's bills"
    )
    parser.add_argument(
        "--endpoint",
        metavar="ID",
        help="sum the receipts of this endpoint only, if several share the volume; for --reconcile "
        f"also {account.ENDPOINT_VARIABLE}",
    )
    parser.add_argument("--api-url", default=API_URL, metavar="URL", help="REST API, for bills")


def run(options: Namespace, today: date | None = None) -> int:
    """Run the command `receipts`, by default for the current day; return the exit status.

    It is ``INCOMPLETE`` if the sums were printed, but lack receipts.
    """
    try:
        sums, bill = _sum_receipts(options, today or datetime.now(UTC).date())
    except (VolumeNotConfigured, NoApiKey, PlanError) as error:
        print_message(error)
        return USAGE_ERROR
    except (VolumeError, DeployError) as error:
        print_message(error)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED

    comparison = list(format_reconciliation(bill)) if bill else []
    notes = list(format_notes(sums))
    if options.json:
        print_text(to_json(sums, bill))
    elif options.csv:
        print_text(to_csv(sums))
        notes += comparison
    else:
        print_text("\n".join([format_table(sums), *comparison]))
    for note in notes:
        print_message(note)
    return INCOMPLETE if sums.damaged_lines else 0


def _sum_receipts(options: Namespace, today: date) -> tuple[ReceiptSums, Reconciliation | None]:
    days, api, endpoint = _select_days(options, today), None, options.endpoint
    with ExitStack() as stack:
        if options.reconcile:
            # Opened first, so that a missing key is reported before the sums.
            endpoint = endpoint or account.endpoint_id()
            if endpoint is None:
                raise PlanError(["--reconcile: add --endpoint, the id of the endpoint"])
            api = stack.enter_context(closing(Api(account.api_key(), options.api_url)))
        source: Path | Volume | None = options.directory
        if source is None:
            volume = open_volume(options.volume, options.datacenter, options.volume_url)
            source = stack.enter_context(volume)
        sums = sum_receipts(source, days, options.by or ["model"], endpoint)
        if not sums.total.requests:
            span = " to ".join(dict.fromkeys([str(sums.days[0]), str(sums.days[-1])]))
            skipped = f" (damaged lines: {sums.damaged_lines:,})" if sums.damaged_lines else ""
            raise VolumeError(
                f"There are no receipts for {span}{skipped}: is RECEIPTS=1 set on the endpoint? "
                "They are written once a second."
            )
        return sums, reconcile(sums, api, endpoint) if api else None


def _select_days(options: Namespace, today: date) -> list[date]:
    if options.first is None:
        if options.last is not None:
            raise PlanError(["--to: add --from, the first day"])
        return options.day or [today]
    last = options.last or today
    count = (last - options.first).days + 1
    if options.day or not 0 < count <= MAX_DAYS:
        raise PlanError([f"--from: 1 to {MAX_DAYS} days until --to, and no --day"])
    return [options.first + timedelta(days=number) for number in range(count)]


def _parse_day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"a day such as 2026-11-27, not {text!r}") from None


def _parse_group_field(text: str) -> str:
    try:
        find_group_values(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return text


def format_table(sums: ReceiptSums) -> str:
    """Return a table with a line for each group, and one for the total."""
    numbers = {**_NUMBERS}
    if sums.total.cost_usd is None:
        del numbers["cost_usd"]
    rows = [[*sums.by, *(title for title, _ in numbers.values())]]
    total_keys = ["total", *[""] * len(sums.by)][: len(sums.by)]
    for keys, totals in [*sums.groups.items(), (total_keys, sums.total)]:
        texts = [make_printable(key) for key in keys]
        cells = [
            text if len(text) <= _MAX_WIDTH else f"{text[: _MAX_WIDTH - 1]}…" for text in texts
        ]
        for name, (_, form) in numbers.items():
            value = getattr(totals, name)
            cells.append("-" if value is None else format(value, form))
        rows.append(cells)
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
