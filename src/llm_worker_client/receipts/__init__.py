"""Sums the receipts that workers with ``RECEIPTS=1`` wrote to a network volume."""

from llm_worker_client.receipts.billing import Reconciliation, reconcile
from llm_worker_client.receipts.sums import ReceiptSums, UsageTotals, sum_receipts

__all__ = ["ReceiptSums", "Reconciliation", "UsageTotals", "reconcile", "sum_receipts"]
