"""The report of a run: JSON, and a page with a table that compares platform and emulator."""

import json
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from llm_worker_client.deploy.settings import SecretMasker
from proof.platform.run import StepOutcome
from proof.platform.steps import STEPS

# Facts about the emulator, by the names of steps, which a test records (tests/platform/proof).
EMULATOR_FACTS: dict[str, dict[str, Any]] = json.loads(
    resources.files(__package__).joinpath("emulator.json").read_text(encoding="utf-8")
)
_DOCUMENTED = {step.name: step.documented for step in STEPS}
_PLACES = {step.name: step.place for step in STEPS}
_MISSING = "-"


def find_differences(outcome: StepOutcome) -> list[str]:
    """Return the descriptions of facts in which the platform differs from the emulator."""
    emulated = EMULATOR_FACTS.get(outcome.name)
    if outcome.problem is not None or emulated is None:
        return []
    # As JSON, since the emulator's facts were read from JSON.
    found = json.loads(json.dumps(outcome.facts))
    names = {**emulated, **found}
    return [name for name in names if emulated.get(name, _MISSING) != found.get(name, _MISSING)]


def make_report(
    outcomes: Sequence[StepOutcome], versions: dict[str, str], left: dict[str, str]
) -> dict[str, Any]:
    """Return the report as JSON; ``left`` names the endpoints that remain, by their ids."""
    rows = [
        {
            "observation": outcome.name,
            "documented": _DOCUMENTED.get(outcome.name),
            "problem": outcome.problem,
            "platform": outcome.facts,
            "emulator": EMULATOR_FACTS.get(outcome.name),
            "differences": find_differences(outcome),
            "place": _PLACES.get(outcome.name),
            "figures": outcome.figures,
            "log": outcome.log,
            "seconds": outcome.seconds,
        }
        for outcome in outcomes
    ]
    return {"versions": versions, "rows": rows, "endpoints left": left}


def write_report(report: dict[str, Any], folder: Path, secrets: SecretMasker) -> None:
    """Write ``result.json`` and the page ``README.md``, without secrets."""
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(report, indent=2, ensure_ascii=False)
    (folder / "result.json").write_text(secrets.mask(content) + "\n", encoding="utf-8")
    page = "\n".join(_format_page(report))
    (folder / "README.md").write_text(secrets.mask(page) + "\n", encoding="utf-8")


def _format_page(report: dict[str, Any]) -> Iterator[str]:
    rows = report["rows"]
    yield f"# The worker on {report['versions']['platform']}\n"
    yield from (f"- {name}: {value}" for name, value in report["versions"].items())
    problems = [row for row in rows if row["problem"]]
    differing = [row for row in rows if row["differences"]]
    yield f"- {len(rows)} observations, {len(differing)} differ, {len(problems)} without a result"
    yield from (
        f"- **not deleted**: {name} ({id})" for id, name in report["endpoints left"].items()
    )
    yield "\n## The platform and the emulator\n"
    yield (
        "A test has recorded the second column from this version's emulator. Only the listed facts"
        " are compared; times and other figures are below.\n"
    )
    yield _table_row("observation", "the emulator does", "the platform did", "change")
    yield _table_row(*["---"] * 4)
    for row in rows:
        facts = _format_values(row["platform"], row["differences"])
        is_same = row["emulator"] is not None and not row["differences"]
        platform = row["problem"] or ("the same" if is_same else facts)
        emulator = _format_values(row["emulator"] or {}, row["differences"])
        place = f"src/emulator/{row['place']}" if row["differences"] else ""
        documented = f"**{row['observation']}** {row['documented'] or ''}"
        yield _table_row(documented, emulator or _MISSING, platform, place)
    yield "\n## Figures of the platform\n"
    yield _table_row("observation", "seconds", "figures")
    yield _table_row(*["---"] * 3)
    for row in rows:
        yield _table_row(row["observation"], row["seconds"], _format_values(row["figures"], []))
    for row in rows:
        if row["log"]:
            yield f"\n## The end of a worker's log: {row['observation']}\n"
            yield from ("```text", *row["log"], "```")


def _format_values(values: dict[str, Any], marked: Sequence[str]) -> str:
    cells = []
    for name, value in values.items():
        title = f"**{name}**" if name in marked else name
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        cells.append(f"{title}: {text}")
    return "; ".join(cells)


def _table_row(*cells: object) -> str:
    texts = (" ".join(str(cell).split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(texts)} |"
