"""The rows of the page: which figures it shows, and their names."""

from proof.machine.plan import LOADS
from proof.measure.comparison import Groups
from proof.measure.table import Row, format_figure

ROWS = (
    Row("first start, compiles the model: first token, s", "first start", "first_s"),
    Row("second start, reuses compiled code: first token, s", "second start", "first_s"),
    *(
        row
        for name in LOADS.values()
        for row in (
            Row(f"{name}: tokens/s", name, "tokens_per_s", digits=0),
            Row(f"{name}: first token p50, ms", name, "first_p50"),
            Row(f"{name}: first token p99, ms", name, "first_p99"),
            Row(f"{name}: gap between tokens p99, ms", name, "gap_p99"),
            Row(f"{name}: CPU time of the side, ms per request", name, "own_cpu"),
            Row(f"{name}: CPU time of the callers, ms per request", name, "client_cpu"),
            Row(f"{name}: posts of chunks per stream", name, "posts"),
        )
    ),
    Row("64 whole responses: requests/s", "64 whole", "requests_per_s"),
    Row("64 whole responses: CPU time of the side, ms per request", "64 whole", "own_cpu"),
    Row("memory after these loads (PSS), MiB", "memory", "mib", digits=0),
    Row("a cancel frees the engine's slot after, ms", "cancel", "freed_ms"),
    Row("core killed: last caller has its error after, s", "core killed", "error_s", digits=2),
    Row("core killed: retryable errors for 16 callers", "core killed", "retryable", digits=0),
    Row("core killed: next answer after, s", "core killed", "recovered_s"),
    Row("16 streams, the model and two adapters: tokens/s", "adapters", "tokens_per_s", digits=0),
    Row("16 streams while texts are embedded: tokens/s", "embedder", "tokens_per_s", digits=0),
    Row("16 streams while texts are embedded: texts/s", "embedder", "embeddings_per_s", digits=0),
    Row("batch: lines/s", "batch", "lines_per_s"),
    Row("batch, worker killed: lines finished before", "batch", "stored", digits=0),
    Row("batch, worker killed: the rest after, s", "batch", "resumed_s"),
    Row("fine-tune of 64 rows: finished after, s", "fine-tune", "trained_s"),
    Row("fine-tune of 64 rows: its adapter answers after, s", "fine-tune", "answered_s"),
)


def headline(figures: Groups) -> str:
    """Return the value and the unit of the first row that has a figure."""
    for row in ROWS:
        value = figures.get(row.load, {}).get(row.figure)
        if value is not None:
            unit = row.title.rpartition(": ")[2].rpartition(", ")[2]
            return f"{format_figure(value, row.digits)} {unit}"
    return ""
