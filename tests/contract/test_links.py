"""Links of the pages lead to files and headings that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT

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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_an_existing_file_and_heading(page: Path) -> None:
    found = list(links(page))
    assert found
    for file, heading in found:
        assert file.exists(), file
        assert not heading or heading in headings(file), heading
