"""The command's questions, and its estimate of the costs."""

import io
import re
import sys

import pytest
from support import ROOT
from support.runpod_api.server import Runpod
from unit.proof.platform.conftest import Prove

from proof.platform.__main__ import read_command_line
from proof.platform.plan import ProofPlan


class Terminal(io.StringIO):
    """A terminal on which these lines are typed."""

    def isatty(self) -> bool:
        return True


def test_nothing_is_created_without_a_terminal(prove: Prove, runpod: Runpod) -> None:
    status, printed = prove()
    assert (status, runpod.changes) == (2, [])
    assert "--yes: it is required" in printed


@pytest.mark.parametrize(("line", "status", "changes"), [("n\n", 1, 0), ("", 1, 0), ("y\n", 0, 2)])
def test_the_command_asks_once(
    prove: Prove,
    runpod: Runpod,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    status: int,
    changes: int,
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(line))
    found, printed = prove("--only", "health")
    assert (found, len(runpod.changes)) == (status, changes)
    assert printed.count("[y/N]") == 1


def test_a_refused_deletion_of_leftovers_ends_the_run(
    prove: Prove, runpod: Runpod, monkeypatch: pytest.MonkeyPatch
) -> None:
    runpod.add(name="llm-worker-proof-0123abcd-main")
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    status, printed = prove()
    assert (status, runpod.changes, "llm-worker-proof-0123abcd-main (ep1)" in printed) == (
        1,
        [],
        True,
    )


@pytest.mark.parametrize(
    ("price", "minutes", "amounts"),
    [
        (None, 60, ["0.69", "0.34", "2.07"]),
        (2.0, 60, ["2.00", "1.00", "6.00"]),
        (2.0, 10, ["2.00", "0.50", "1.00"]),
    ],
)
def test_the_estimate_states_its_assumptions(
    price: float | None, minutes: float, amounts: list[str]
) -> None:
    plan = ProofPlan(image="a/b:1", hourly_price=price, limit_minutes=minutes)
    text = "\n".join(plan.describe())
    assert re.findall(r"([\d.]+) USD", text) == amounts
    assert ("an assumption" in text) == (price is None)
    for part in (f"{plan.prefix}-main", f"{plan.prefix}-broken", "a/b:1", plan.model, "AMPERE_16"):
        assert part in text


@pytest.mark.parametrize(
    "words", [(), ("--image", "a", "--minutes", "0"), ("--image", "a", "--only", "x")]
)
def test_a_wrong_command_line_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit, match="2"):
        read_command_line([*words])


def test_every_option_in_the_documentation_exists(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "endpoint.md").read_text()
    section = page.partition("\n## Compare it")[2].partition("\n## ")[0]
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", section))
    with pytest.raises(SystemExit):
        read_command_line(["--help"])
    listed = capsys.readouterr().out
    assert len(named) > 4
    assert {option for option in named if option not in listed} == set()
