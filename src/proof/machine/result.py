"""The result of a proof: its file in JSON, and its page in Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from proof.machine.plan import LOADS
from proof.measure.comparison import Groups, Round, Row, format_figure, side_medians, table


@dataclass(frozen=True)
class Failure:
    """A step that failed, the reason, and the last lines of the side's output."""

    side: str
    step: str
    reason: str
    output: list[str] = field(default_factory=list)


@dataclass
class Proof:
    """All that was measured on one machine."""

    date: str  # of the measurement
    machine: str  # name of the GPU, or of the CPU
    model: str  # its name and origin
    system: dict[str, str]  # the machine and the versions of the software, by name
    engine: dict[str, str | int | float | bool]  # the options on all sides
    seconds: float = 0.0  # of all steps
    # Those of each side: first the starts in their order, then the other steps.
    rounds: dict[str, list[Round]] = field(default_factory=lambda: {"worker": [], "server": []})
    failures: list[Failure] = field(default_factory=list)

    def sides(self) -> dict[str, Groups]:
        """Return the medians of each side."""
        return side_medians(self.rounds)


FILE_FORMAT = TypeAdapter(Proof)

# The figures of the page, and their names.
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


def headline(figures: Groups) -> str:
    """Return the value and the unit of the first row that has a figure."""
    for row in ROWS:
        value = figures.get(row.load, {}).get(row.figure)
        if value is not None:
            unit = row.title.rpartition(": ")[2].rpartition(", ")[2]
            return f"{format_figure(value, row.digits)} {unit}"
    return ""


def page(proof: Proof, plots: Sequence[str] = ()) -> str:
    """Return the page; ``plots`` are the names of files next to it."""
    rounds = {side: [each.figures for each in found] for side, found in proof.rounds.items()}
    engine = ", ".join(f"`{name}={value}`" for name, value in proof.engine.items())
    system = ["| machine | |", "| --- | --- |"]
    system += [f"| {name} | {value} |" for name, value in proof.system.items()]
    failures = []
    for failure in proof.failures:
        failures.append(f"**{failure.side}, {failure.step}**: {failure.reason}")
        if failure.output:
            failures.append("\n".join(["```text", *failure.output, "```"]))
    parts = [
        f"# {proof.machine}: {proof.model}",
        f"Measured by `make prove` on {proof.date}, in {proof.seconds / 60:.0f} minutes."
        f" Engine: {engine}.",
        NO_GPU if proof.system.get("GPU") == "none" else "",
        "\n".join(system),
        table(ROWS, proof.sides(), rounds),
        _phases([each.phases for each in proof.rounds["worker"] if each.phases]),
        *(f"![{plot.partition('.')[0]}]({plot})" for plot in plots),
        "## Steps that failed" if proof.failures else "All steps succeeded.",
        *failures,
        "## How it was measured",
        HOW,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _phases(starts: Sequence[Groups]) -> str:
    """Return the phases of the worker's starts as a table; nothing without two starts."""
    if len(starts) < 2:
        return ""
    lines = ["| phase of the worker's start | first, s | second, s |", "| --- | ---: | ---: |"]
    for name in starts[0] | starts[1]:
        first, second = (
            f"{start[name]['end'] - start[name]['begin']:.1f}" if name in start else ""
            for start in starts[:2]
        )
        lines.append(f"| {name} | {first} | {second} |")
    return "\n".join(lines)


def add_row(proof: Proof, text: str, link: str) -> str:
    """Return a page whose table of results has a row for a proof at its end, and no earlier one.

    Its cells have two figures: this worker / vLLM's server.
    """
    sides = proof.sides()

    def cell(group: str, figure: str) -> str:
        values = (sides[side].get(group, {}).get(figure) for side in ("worker", "server"))
        return " / ".join("-" if value is None else f"{value:,.0f}" for value in values)

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
    lines = [line for line in text.splitlines() if f"({link})" not in line]
    begin = next(number for number, line in enumerate(lines) if line.startswith(TABLE))
    length = next(n for n, line in enumerate(lines[begin:]) if not line.startswith("|"))
    lines.insert(begin + length, f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
