"""Writes a proof as a page in Markdown."""

from collections.abc import Sequence

from proof.machine.result import Failure, Proof
from proof.machine.rows import ROWS
from proof.measure.table import table

# The beginning of the head of the table of results by GPU.
TABLE = "| GPU | model |"
NO_GPU = (
    "The machine has no GPU. So this page shows that the steps work, and says nothing about speed:"
    " the callers, the emulator and the model share the CPU."
)
HOW = """\
- **worker**: the worker as in production. Callers use the OpenAI gateway of this project's emulator
  of RunPod, a process on the same machine, which shares its CPUs.
- **server**: vLLM's own OpenAI server with the same engine options, called directly.
- A cell with two figures has one for each start, in their order; *ratio* is that of the medians. A
  cell is empty if the side has no such feature, or the step failed. vLLM's server has no second
  model, no batches that resume, and no fine-tunes. Those steps and the adapters run once, without
  compiled code.
- Both sides start twice, in the order worker, server, server, worker. The first start of a side has
  empty caches of compiled code. vLLM's files and the weights have been read before, so it is not
  the cold start of a new machine. The second worker is a new container on the volume of the first
  one, where it also finds vLLM's plan of the start. The second server has the home directory of the
  first one.
- A caller sends its next request when it has the response to the last one. A load has ten requests
  per caller (two on a CPU), each with a short prompt and 64 tokens (`ignore_eos`), greedy.
- *gap* is the time between two tokens, and 0 between tokens that arrive together. The worker sends
  tokens in chunks that grow, so its gaps are fewer and longer.
- *CPU time* and *memory* are sums over all processes of a side. Those of the emulator are not
  included.
- *a cancel*: from the platform's cancel, or for the server from the closed connection, until the
  engine's metrics show one running request less, including the time to read the metrics.
- *core killed*: SIGKILL under 16 streams. The worker starts a new core; the server exits.
- *batch*: all processes of the worker are killed after half of the lines. The emulator starts it
  again, and it resumes the batch 15 seconds after the last heartbeat of the first one."""


def page(proof: Proof, plots: Sequence[str] = ()) -> str:
    """Return the page.

    Args:
        proof: The result.
        plots: Names of the files with plots, next to the page.
    """
    rounds = {side: [each.figures for each in found] for side, found in proof.rounds.items()}
    engine = ", ".join(f"`{name}={value}`" for name, value in proof.engine.items())
    parts = [
        f"# {proof.machine}: {proof.model}",
        f"Measured by `make prove` on {proof.date}, in {proof.seconds / 60:.0f} minutes."
        f" Engine: {engine}.",
        NO_GPU if proof.system.get("GPU") == "none" else "",
        _pairs("machine", proof.system),
        table(ROWS, proof.sides(), rounds),
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
