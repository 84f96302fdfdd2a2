"""The table of docs/gpus.md on recorded models and pools: it says what the check finds.

``WRITE_POOLS=1 pytest tests/contract/test_pools_page.py`` writes it.
"""

import math
import os
import platform
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

import pytest
import torch
from support import ROOT
from support.doctor import options
from support.tables.models import RECORDED

from worker.doctor.candidate import Candidate
from worker.doctor.gpus.asked import choice
from worker.doctor.gpus.judge import Judge
from worker.doctor.gpus.verdicts import Fit, Verdict
from worker.engine.machine import Gpu, Machine
from worker.store import Wanted
from worker.store.hub import locate
from worker.store.places import Places

PAGE = ROOT / "docs" / "gpus.md"
# Set, the page is written.
WRITE = "WRITE_POOLS"
POOLS = (
    "AMPERE_16",
    "AMPERE_24",
    "ADA_24",
    "AMPERE_48",
    "ADA_48_PRO",
    "AMPERE_80",
    "ADA_80_PRO",
    "HOPPER_141",
)
ONE = Machine(cpu=False, gpus=(Gpu("", 0),))


def line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


HEAD = line(("model", "kind", *POOLS)) + line(["---"] * (2 + len(POOLS)))


def cell(verdict: Verdict) -> str:
    """Return what a GPU holds of a model: its context, and so long texts at once."""
    if verdict.fit not in (Fit.FITS, Fit.SHORTER):
        return {Fit.NO: "no"}.get(verdict.fit, verdict.fit.value)
    texts = "any" if math.isinf(verdict.texts) else str(math.floor(verdict.texts))
    shorter = ", shorter" if verdict.fit is Fit.SHORTER else ""
    return f"{verdict.context} x {texts}{shorter}"


def row(name: str, folder: Path) -> str:
    """Judge a recorded model on every pool."""
    model = RECORDED[name]
    place = model.write(folder / "model")
    engine = options(ONE).parse({"MODEL": str(place), **model.settings})
    judge = Judge([Candidate.of(engine, locate(Wanted(str(place)), Places(place)))])
    verdicts = (judge.verdict(choice(pool)) for pool in POOLS)
    return line((f"`{model.name}`", name, *map(cell, verdicts)))


def table(page: str) -> dict[str, str]:
    """Return the lines of the page's table, by their second cell."""
    below = page.partition(HEAD)[2].splitlines(keepends=True)
    return {one.split(" | ")[1]: one for one in takewhile(lambda one: one[0] == "|", below)}


@pytest.fixture(params=[("x86_64", True), ("aarch64", False)])
def _processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let vLLM see a processor of this kind, that has all of the sets of instructions or none."""
    machine, able = request.param
    monkeypatch.setattr(platform, "machine", lambda: machine)
    for name in dir(torch.cpu):
        if name.startswith("_is_"):
            monkeypatch.setattr(torch.cpu, name, lambda: able)


@pytest.mark.usefixtures("_processor")
@pytest.mark.parametrize("name", RECORDED)
def test_the_page_says_what_the_check_finds_of_a_recorded_model(name: str, tmp_path: Path) -> None:
    found = row(name, tmp_path)
    if WRITE in os.environ:
        page = PAGE.read_text()
        before = table(page)
        lines = "".join({**before, name: found}.values())
        PAGE.write_text(page.replace(HEAD + "".join(before.values()), HEAD + lines))
    assert table(PAGE.read_text()).get(name) == found


def test_the_page_has_no_other_models() -> None:
    assert table(PAGE.read_text()).keys() == RECORDED.keys()
