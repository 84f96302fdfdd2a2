"""Links of the pages lead to files and headings that exist."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT

PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "examples" / "README.md",
        ROOT / ".runpod" / "README.md",
    ]
)
FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`[^`\n]*`")


def text(page: Path) -> str:
    """Return a page without its blocks of code, in which nothing is a link or a heading."""
    return FENCED.sub("", page.read_text())


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Yield the targets of a page's links to this repository: the file, and the heading in it."""
    for target in LINK.findall(CODE.sub("", text(page))):
        if not re.match(r"\w+:", target):
            file, _, heading = target.partition("#")
            yield (page.parent / file if file else page), heading


def headings(page: Path) -> set[str]:
    """Return a page's headings as GitHub writes them in links: a repeated one gets a number."""
    found: Counter[str] = Counter()
    anchors = set()
    for title in re.findall(r"^#+ (.+)$", text(page), re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower()
        anchor = re.sub(r"[^\w\s-]", "", shown).replace(" ", "-")
        anchors.add(f"{anchor}-{found[anchor]}" if found[anchor] else anchor)
        found[anchor] += 1
    return anchors


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_an_existing_file_and_heading(page: Path) -> None:
    for file, heading in links(page):
        assert file.exists(), file
        assert not heading or heading in headings(file), f"{file.name}#{heading}"


def test_pages_have_links_and_headings_that_are_looked_at() -> None:
    assert sum(1 for page in PAGES for _ in links(page)) > 200
    assert "when-it-doesnt-come-up" in headings(ROOT / "docs" / "deploy.md")


def test_every_page_of_docs_has_a_place_in_the_site() -> None:
    listed = set(re.findall(r"- (?:Start: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
    assert listed == {
        str(page.relative_to(ROOT)) for page in PAGES if page.parent.name != ".runpod"
    }
