"""Writes a proof as a page in Markdown."""

from collections.abc import Sequence

from proof.machine.result import Failure, Proof
from proof.machine.rows import ROWS
from proof.measure.table import table

# The beginning of the head of the table of results by GPU.
TABLE = "| GPU | model |"
HOW = """\
- **worker**: the worker as in production, behind the local platform in a process of its own.
  Callers use the platform's OpenAI gateway.
- **server**: vLLM's own OpenAI server with the same engine options, without a platform.
- *ratio* is the worker's figure divided by the server's. A cell is empty if the side has no such
  feature, or the step failed.
- The order of the starts is worker, server, server, worker. The first start of a side has empty
  caches. The second worker is a new container on the volume of the first one; the second server has
  the home directory of the first one.
- Loads are medians of the two starts. A caller sends its next request when it has the response to
  the last one. Each request generates 64 tokens (`ignore_eos`), greedy, with a short prompt.
- *gap* is the time between two reads with text. *CPU* and *memory* are sums over all processes of a
  side; the worker's do not include the platform.
- *a cancel*: from the platform's cancel, or for the server from the closed connection, until the
  engine's metrics show one running request less, including the time to read the metrics.
- *core killed*: SIGKILL under 16 streams. The worker starts a new core; the server exits.
- *batch*: all processes of the worker are killed after half of the lines. The platform starts it
  again, and it resumes the batch 15 seconds after the last heartbeat of the first one.
- Adapters, embedder, batch and fine-tune run without compiled code."""


def page(proof: Proof, plots: Sequence[str] = ()) -> str:
    """Return the page.

    Args:
        proof: The result.
        plots: Names of the files with plots, next to the page.
    """
    groups = proof.sides()
    engine = ", ".join(f"`{name}={value}`" for name, value in proof.engine.items())
    parts = [
        f"# {proof.machine}, {proof.model}",
        f"Measured on {proof.date} in {proof.seconds / 60:.0f} minutes. Engine: {engine}.",
        _pairs("machine", proof.system),
        table(ROWS, groups),
        _phases(proof),
        *(f"![{plot.partition('.')[0]}]({plot})" for plot in plots),
        "## Steps that failed" if proof.failures else "All steps succeeded.",
        *(_failure(each) for each in proof.failures),
        "## How it was measured",
        HOW,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def add_row(proof: Proof, text: str, link: str) -> str:
    """Return a page whose table has a row for a proof at its end, and no earlier row of it."""
    lines = [line for line in text.splitlines() if f"({link})" not in line]
    begin = next(number for number, line in enumerate(lines) if line.startswith(TABLE))
    length = next(n for n, line in enumerate(lines[begin:]) if not line.startswith("|"))
    lines.insert(begin + length, _summary_row(proof, link))
    return "\n".join(lines) + "\n"


def _summary_row(proof: Proof, link: str) -> str:
    """Return a proof as a row of the table of results by GPU: this worker / vLLM's server."""
    sides = proof.sides()

    def cell(group: str, figure: str, digits: int = 0) -> str:
        values = (sides[side].get(group, {}).get(figure) for side in ("worker", "server"))
        return " / ".join("-" if value is None else f"{value:,.{digits}f}" for value in values)

    cells = [
        f"[{proof.machine}]({link})",
        proof.model,
        proof.system.get("vllm", ""),
        proof.date,
        cell("first start", "first_s"),
        cell("second start", "first_s"),
        cell("1 stream", "first_p50"),
        cell("64 streams", "tokens_per_s"),
        cell("64 streams", "first_p50"),
        cell("256 streams", "tokens_per_s"),
    ]
    return f"| {' | '.join(cells)} |"


def _failure(failure: Failure) -> str:
    text = f"**{failure.side}, {failure.step}**: {failure.reason}"
    log = "\n".join(["```text", *failure.output, "```"])
    return f"{text}\n\n{log}" if failure.output else text


def _pairs(head: str, values: dict[str, str]) -> str:
    return "\n".join(
        [f"| {head} | |", "| --- | --- |", *(f"| {k} | {v} |" for k, v in values.items())]
    )


def _phases(proof: Proof) -> str:
    """Return the phases of the worker's starts as a table."""
    starts = [each.phases for each in proof.rounds["worker"] if each.phases]
    if len(starts) < 2:
        return ""
    lines = ["| phase of the worker's start | first, s | second, s |", "| --- | ---: | ---: |"]
    for name in starts[0] | starts[1]:
        cells = [
            f"{start[name]['end'] - start[name]['begin']:.1f}" if name in start else ""
            for start in starts[:2]
        ]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)
