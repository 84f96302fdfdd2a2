"""docs/deploy.md quotes the worker's messages, and its links have targets."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT

from worker.store import Reason, Wanted, unavailable

PAGE = ROOT / "docs" / "deploy.md"
PAGES = (ROOT / "README.md", PAGE)


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Yield the targets of a page's links: the file, and the heading in it."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in target:
            file, _, heading = target.partition("#")
            yield (page.parent / file if file else page), heading


def headings(page: Path) -> set[str]:
    """Return a page's headings as links write them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("reason", Reason)
def test_the_page_explains_every_reason_why_a_model_is_unavailable(reason: Reason) -> None:
    problem = unavailable(Wanted("org/name"), reason).problem.removeprefix("org/name: ")
    assert f"| `{problem}` |" in PAGE.read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_an_existing_file_and_heading(page: Path) -> None:
    found = list(links(page))
    assert found
    for file, heading in found:
        assert file.exists(), file
        assert not heading or heading in headings(file), heading
