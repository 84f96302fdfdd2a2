"""Sums the receipts that workers with ``RECEIPTS=1`` wrote to a network volume.

``sums`` reads the files of some days, from the volume or from a directory with a copy of it, and
sums the receipts by group. ``billing`` compares the sums with the platform's bills. ``command``
selects the days and prints the sums, as a table, as JSON or as CSV.
"""

from llm_worker_client.receipts.billing import Reconciliation, reconcile
from llm_worker_client.receipts.sums import ReceiptSums, UsageTotals, sum_receipts

__all__ = ["ReceiptSums", "Reconciliation", "UsageTotals", "reconcile", "sum_receipts"]
