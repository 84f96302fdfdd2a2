"""The rows of the table: each load's figures."""

from collections.abc import Iterator

from compare_parts.rows import Row

from gpu_load.loads import CEILING, LOADS, Load


def _rows(name: str, load: Load) -> Iterator[Row]:
    if load.stream and not load.calls_tool:
        goal = 1.0 if name == CEILING else None
        yield Row(f"{name}: tokens/s", name, "tokens_per_s", min_ratio=goal, digits=0)
    else:
        # The callers count no tokens of whole answers, and only a part of those of a tool's call.
        yield Row(f"{name}: tokens/s of the core", name, "core_tokens_per_s", digits=0)
    if load.stream and name != CEILING:
        yield Row(f"{name}: pace / nominal pace", name, "pace", min_ratio=0.98, digits=3)
    yield Row(f"{name}: pace of the core / nominal", name, "core_pace", digits=3)
    yield Row(f"{name}: CPU cores of the front", name, "front_cores", digits=2)
    yield Row(f"{name}: CPU cores of the core", name, "core_cores", digits=2)
    yield Row(f"{name}: CPU cores of the callers", name, "callers_cores", digits=2)
    yield Row(f"{name}: first token p50, ms", name, "first_p50", digits=0)
    yield Row(f"{name}: gap between tokens p99, ms", name, "gap_p99", digits=0)
    yield Row(f"{name}: tokens a POST", name, "tokens_a_post")
    yield Row(f"{name}: core without requests, ms/s", name, "core_idle_ms", digits=1)


ROWS = [row for name, load in LOADS.items() for row in _rows(name, load)]
