"""The command `receipts`, which sums the receipts on a network volume or in a copy of it."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from contextlib import ExitStack, closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from llm_worker_client import account
from llm_worker_client.account import NoApiKey
from llm_worker_client.deploy.api import API_URL, Api
from llm_worker_client.deploy.errors import DeployError, PlanError
from llm_worker_client.files import INTERRUPTED, USAGE_ERROR, add_volume_arguments
from llm_worker_client.receipts import report
from llm_worker_client.receipts.billing import Reconciliation, reconcile
from llm_worker_client.receipts.receipt import DIRECTORY
from llm_worker_client.receipts.sums import (
    GROUP_FIELDS,
    ReceiptSums,
    find_group_values,
    sum_receipts,
)
from llm_worker_client.terminal import print_message, print_text
from llm_worker_client.volume import VolumeError, VolumeNotConfigured, open_volume

if TYPE_CHECKING:
    from llm_worker_client.volume import Volume

MAX_DAYS = 366
# Exit status if some receipts could not be read.
INCOMPLETE = 3


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command `receipts` to a parser."""
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
        with ExitStack() as stack:
            days = _select_days(options, today or datetime.now(UTC).date())
            # Opened first, so that a missing key is reported before the sums.
            api, endpoint = _open_api(options, stack) if options.reconcile else (None, "")
            source, by = _open_source(options, stack), options.by or ["model"]
            sums = _sum_receipts(source, days, by, endpoint or options.endpoint)
            bill = reconcile(sums, api, endpoint) if api else None
    except (VolumeNotConfigured, NoApiKey, PlanError) as error:
        print_message(error)
        return USAGE_ERROR
    except (VolumeError, DeployError) as error:
        print_message(error)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    _print_report(options, sums, bill)
    return INCOMPLETE if sums.damaged_lines else 0


def _select_days(options: Namespace, today: date) -> list[date]:
    """Return the days that the options select.

    Raises:
        PlanError: If the options contradict each other.
    """
    if options.first is None:
        if options.last is not None:
            raise PlanError(["--to: add --from, the first day"])
        return options.day or [today]
    last = options.last or today
    count = (last - options.first).days + 1
    if options.day or not 0 < count <= MAX_DAYS:
        raise PlanError([f"--from: 1 to {MAX_DAYS} days until --to, and no --day"])
    return [options.first + timedelta(days=number) for number in range(count)]


def _open_source(options: Namespace, stack: ExitStack) -> "Path | Volume":
    if options.directory is not None:
        return Path(options.directory)
    return stack.enter_context(open_volume(options.volume, options.datacenter, options.volume_url))


def _open_api(options: Namespace, stack: ExitStack) -> tuple[Api, str]:
    endpoint = options.endpoint or account.endpoint_id()
    if endpoint is None:
        raise PlanError(["--reconcile: add --endpoint, the id of the endpoint"])
    return stack.enter_context(closing(Api(account.api_key(), options.api_url))), endpoint


def _sum_receipts(
    source: "Path | Volume", days: list[date], by: list[str], endpoint: str | None
) -> ReceiptSums:
    """Return the sums of the receipts of some days.

    Raises:
        VolumeError: If there are no receipts, or the volume or the directory can't be read.
    """
    sums = sum_receipts(source, days, by, endpoint)
    if not sums.total.requests:
        span = " to ".join(dict.fromkeys([str(sums.days[0]), str(sums.days[-1])]))
        skipped = f" (damaged lines: {sums.damaged_lines:,})" if sums.damaged_lines else ""
        message = (
            f"There are no receipts for {span}{skipped}: is RECEIPTS=1 set on the endpoint? "
            "They are written once a second."
        )
        raise VolumeError(message)
    return sums


def _print_report(options: Namespace, sums: ReceiptSums, bill: Reconciliation | None) -> None:
    lines = list(report.format_reconciliation(bill)) if bill else []
    notes = list(report.format_notes(sums))
    if options.json:
        print_text(report.to_json(sums, bill))
    elif options.csv:
        print_text(report.to_csv(sums))
        notes += lines
    else:
        print_text("\n".join([report.format_table(sums), *lines]))
    for note in notes:
        print_message(note)


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
