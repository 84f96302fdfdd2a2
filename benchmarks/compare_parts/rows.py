"""The rows of the table: a figure of each side, and the worker's goal relative to vLLM's server."""

from collections.abc import Mapping

from proof.measure.table import Row, Side, table

# The sides of the first columns; those with the SDK's own loop follow.
FIRST_SIDES = ("worker", "server", "bare")
# The loads of the sweep, by number of callers.
SWEEP = {2**power: f"sweep {2**power}" for power in range(8)}
# Milliseconds that are added to each POST of the worker.
POST_DELAYS_MS = (10, 50, 100)

ROWS = (
    Row("start to the first streamed token, s", "start", "first_s", max_ratio=0.4),
    Row("idle: first token p50, ms", "idle", "first_p50", max_ratio=1.2),
    Row("idle: first token p99, ms", "idle", "first_p99", max_ratio=1.5),
    Row("idle: 64 tokens p50, ms", "idle", "latency_p50", max_ratio=0.9),
    Row("16 streams: tokens/s", "16 streams", "tokens_per_s", min_ratio=1.0, digits=0),
    Row("64 streams: tokens/s", "64 streams", "tokens_per_s", min_ratio=1.0, digits=0),
    Row("64 streams: first token p50, ms", "64 streams", "first_p50", max_ratio=1.0),
    Row("64 streams: gap between tokens p99, ms", "64 streams", "gap_p99", max_value=120.0),
    Row("64 streams: CPU of the side, ms a request", "64 streams", "own_cpu", max_ratio=1.0),
    Row("64 streams: CPU of the platform, ms a request", "64 streams", "platform_cpu"),
    Row("64 streams: CPU of the callers, ms a request", "64 streams", "client_cpu"),
    Row("64 streams: share of the machine, side, %", "64 streams", "own_share", digits=0),
    Row("64 streams: share of the platform, %", "64 streams", "platform_share", digits=0),
    Row("64 streams: share of the callers, %", "64 streams", "client_share", digits=0),
    Row("64 streams: POSTs a stream", "64 streams", "posts"),
    Row("64 whole: requests/s", "64 whole", "requests_per_s", min_ratio=1.0, digits=0),
    Row("64 whole: CPU of the side, ms a request", "64 whole", "own_cpu", max_ratio=0.9),
    Row("64 whole: CPU of the platform, ms a request", "64 whole", "platform_cpu"),
    Row("64 whole: share of the machine, side, %", "64 whole", "own_share", digits=0),
    Row("64 whole: share of the platform, %", "64 whole", "platform_share", digits=0),
    Row("64 whole: share of the callers, %", "64 whole", "client_share", digits=0),
    Row("128 streams: tokens/s", SWEEP[128], "tokens_per_s", digits=0),
    Row("memory after all that (PSS), MiB", "start", "memory_mib", max_ratio=0.9, digits=0),
    Row("100 tokens, 10 ms a POST / without", "link", "10 ms", digits=2),
    Row("100 tokens, 50 ms a POST / without", "link", "50 ms", max_value=1.1, digits=2),
    Row("100 tokens, 100 ms a POST / without", "link", "100 ms", digits=2),
    *(
        Row(f"200 tokens, 5 ms apart, {delay} ms a POST / engine", "paced", f"{delay} 5", digits=2)
        for delay in (0, *POST_DELAYS_MS)
    ),
    Row("jobs that compute nothing, a second", "nothing", "jobs_per_s", digits=0),
    Row("compiled: first start, s", "compiled", "first"),
    Row("compiled: next start on the volume, s", "compiled", "next"),
    Row("prompts/s, all their own beginnings", "prefix", "distinct", digits=0),
    Row("prompts/s, 8 beginnings in common", "prefix", "shared", digits=0),
    Row("20,000 jobs: time a job, end / begin", "flat", "seconds", max_value=1.05, digits=2),
    Row("20,000 jobs: CPU a job, end / begin", "flat", "cpu_s", max_value=1.05, digits=2),
    Row("20,000 jobs: memory, end / begin", "flat", "memory_mb", max_value=1.05, digits=2),
    Row("20,000 jobs: open files, end / begin", "flat", "open_files", max_value=1.05, digits=2),
)


def side_table(sides: Mapping[str, Side]) -> str:
    """Return the table as Markdown, with the worker's ratio to vLLM's server and its goal."""
    names = [name for name in FIRST_SIDES if name in sides]
    names += sorted(sides.keys() - names)
    return table(ROWS, {name: sides[name] for name in names})
