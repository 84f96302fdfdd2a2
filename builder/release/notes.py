"""The notes of releases: sections of ``CHANGELOG.md``, and news that is not in it yet.

The news of a change is a file in ``changes/``. towncrier renders all of them (``nox -s notes``).
"""

import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path

TYPES = ("added", "changed", "deprecated", "removed", "fixed", "security")

_HEADING = re.compile(r"^## \[(?P<version>[^\]]+)\](?: - (?P<date>\d{4}-\d{2}-\d{2}))?\s*$", re.M)
# The number of an issue, or a word without one.
_NEWS_FILE = re.compile(rf"(\d+|\+[a-z0-9-]+)\.({'|'.join(TYPES)})\.md")


@dataclass(frozen=True)
class Section:
    """The notes of a version; unreleased versions have no ``date``."""

    version: str
    date: str | None
    notes: str


def sections(changelog: str) -> dict[str, Section]:
    """Parse a changelog; return its sections by version, the newest first."""
    headings = list(_HEADING.finditer(changelog))
    ends = [heading.start() for heading in headings[1:]] + [len(changelog)]
    return {
        heading["version"]: Section(
            heading["version"], heading["date"], changelog[heading.end() : end].strip()
        )
        for heading, end in zip(headings, ends, strict=True)
    }


def news_files(root: Path) -> list[Path]:
    """Return the news of changes that are not in the changelog yet."""
    return sorted(file for file in (root / "changes").glob("*") if file.name != "README.md")


def find_mistakes(root: Path) -> list[str]:
    """Return what is wrong with the files of news, one sentence for each."""
    mistakes = []
    for file in news_files(root):
        if not _NEWS_FILE.fullmatch(file.name):
            expected = f"123.TYPE.md or +WORD.TYPE.md, with a type of {', '.join(TYPES)}"
            mistakes.append(f"changes/{file.name}: the name must be {expected}")
        # A sentence may end with a link to its page.
        elif not re.search(r"(\.|\]\([^)]+\))\s*$", file.read_text()):
            mistakes.append(f"changes/{file.name}: the text must end as a sentence")
    return mistakes


def release_section(changelog: str, version: str, news: str, day: date) -> str:
    """Return the changelog with a dated section for a version.

    Args:
        changelog: The text of ``CHANGELOG.md``.
        version: The version. If it has a section already, the news becomes its last part.
        news: The rendered news.
        day: The day of the release.
    """
    heading = f"## [{version}] - {day.isoformat()}"
    if section := sections(changelog).get(version):
        notes = f"{section.notes}\n\n{news.strip()}".strip()
        head, tail = re.split(rf"(?m)^## \[{re.escape(version)}\].*$", changelog)
        following = tail.removeprefix(f"\n\n{section.notes}").lstrip("\n")
        return f"{head}{heading}\n\n{notes}\n" + (f"\n{following}" if following else "")
    first = _HEADING.search(changelog)
    at = first.start() if first else len(changelog)
    return f"{changelog[:at]}{heading}\n\n{news.strip()}\n\n{changelog[at:]}".rstrip() + "\n"
