"""Sections of CHANGELOG.md."""

import re
from dataclasses import dataclass

_HEADING = re.compile(r"^## \[(?P<version>[^\]]+)\](?: - (?P<date>\d{4}-\d{2}-\d{2}))?\s*$", re.M)


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
