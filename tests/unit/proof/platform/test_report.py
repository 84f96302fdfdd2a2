"""The report compares the platform with the emulator, and contains no secrets."""

import json
from pathlib import Path

import pytest
from support import ROOT

from llm_worker_client.deploy.settings import SecretMasker
from proof.platform import report
from proof.platform.report import EMULATOR_FACTS, find_differences, make_report, write_report
from proof.platform.run import StepOutcome
from proof.platform.steps import STEPS

SECRET = "rpa_ABCDEFGHIJKLMNOPQRST"


def test_each_step_has_recorded_facts_and_a_place_in_the_emulator() -> None:
    assert [*EMULATOR_FACTS] == ["deployment", *(step.name for step in STEPS)]
    for place in "; ".join(step.place for step in STEPS).split("; "):
        file, _, names = place.partition(": ")
        source = (ROOT / "src" / "emulator" / file).read_text()
        for name in names.replace(",", ".").replace(" ", "").split("."):
            assert name in source, place


@pytest.mark.parametrize(
    ("outcome", "differences"),
    [
        (StepOutcome("a", facts={"x": 1, "y": (1, 2)}), []),
        (StepOutcome("a", facts={"x": 2, "y": [1, 2]}), ["x"]),
        (StepOutcome("a", facts={"x": 1, "z": 3}), ["y", "z"]),
        (StepOutcome("a", "no result"), []),
        (StepOutcome("unknown", facts={"x": 1}), []),
    ],
    ids=["same", "different", "missing and new", "problem", "not recorded"],
)
def test_differences_are_found(
    monkeypatch: pytest.MonkeyPatch, outcome: StepOutcome, differences: list[str]
) -> None:
    monkeypatch.setattr(report, "EMULATOR_FACTS", {"a": {"x": 1, "y": [1, 2]}})
    assert find_differences(outcome) == differences


def test_a_difference_names_the_place_in_the_emulator(tmp_path: Path) -> None:
    facts = {**EMULATOR_FACTS["failed job"], "gateway": f"500 text/html | {SECRET}"}
    outcomes = [
        StepOutcome("failed job", facts=facts, figures={"key": SECRET}, log=[f"line {SECRET}"]),
        StepOutcome("health", "no result within 5 s"),
    ]
    masker = SecretMasker()
    masker.add([SECRET])
    made = make_report(outcomes, {"platform": "RunPod Serverless"}, {"ep1": "left-main"})
    write_report(made, tmp_path, masker)
    page, content = ((tmp_path / name).read_text() for name in ("README.md", "result.json"))
    assert SECRET not in page + content
    assert "\n## The end of a worker's log: failed job\n\n```text\nline ***\n```\n" in page
    assert "| src/emulator/options.py: FailedJobHandling |" in page
    assert "**gateway**: 500 text/html \\| ***" in page
    assert "| no result within 5 s |  |" in page
    assert "**not deleted**: left-main (ep1)" in page
    rows = json.loads(content)["rows"]
    assert [row["differences"] for row in rows] == [["gateway"], []]
