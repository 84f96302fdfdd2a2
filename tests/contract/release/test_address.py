"""Tests that one command writes the repository's address to all files that need it."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
import yaml
from release.address import badges, parse, read_slug, with_address, write_address
from release.plan import worker_version
from support import ROOT

pytestmark = pytest.mark.contract

FILES = (
    "pyproject.toml",
    "README.md",
    "mkdocs.yml",
    "CITATION.cff",
    "docs/releasing.md",
    ".runpod/hub.json",
    ".runpod/load-balancing/hub.json",
)
SITE = "https://acme.github.io/Worker/"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy the files of the repository that have its address, or will have it."""
    for name in (*FILES, ".github/CODEOWNERS"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_repository_has_its_address_everywhere_or_nowhere() -> None:
    slug = read_slug(ROOT)
    assert badges(slug) in (ROOT / "README.md").read_text().partition("\n## ")[0]
    if slug:
        contents = with_address(ROOT, slug)
        assert [name for name in contents if (ROOT / name).read_text() != contents[name]] == []
    else:
        assert not (ROOT / ".github" / "CODEOWNERS").exists()
        for name in set(FILES) - {"docs/releasing.md", "README.md"}:
            assert not re.search(
                r"https://(github\.com|\w+\.github\.io)", (ROOT / name).read_text()
            )


def test_one_command_writes_the_address(copy: Path) -> None:
    changed = write_address(copy, "https://github.com/Acme/Worker.git")
    assert set(changed) == {*FILES, ".github/CODEOWNERS"}
    assert read_slug(copy) == "Acme/Worker"
    urls = tomllib.loads((copy / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Documentation"] == SITE
    readme = (copy / "README.md").read_text()
    assert "actions/workflows/check.yml/badge.svg" in readme
    assert f"(docs/badges/docs.svg)]({SITE})" in readme
    (line,) = [line for line in readme.splitlines() if line.startswith("[![")]
    assert line.count("[![") == 5
    assert (copy / ".github" / "CODEOWNERS").read_text() == "* @Acme\n"
    citation = yaml.safe_load((copy / "CITATION.cff").read_text())
    assert citation["repository-code"] == "https://github.com/Acme/Worker"
    pages = (copy / "mkdocs.yml").read_text()
    assert f"site_url: {SITE}\nrepo_url: https://github.com/Acme/Worker\n" in pages
    guide = (copy / "docs" / "releasing.md").read_text()
    assert "cosign verify ghcr.io/acme/worker:stable" in guide
    assert "OWNER/REPOSITORY" not in guide


def test_the_listings_get_their_icon_and_nothing_else_changes(copy: Path) -> None:
    names = [name for name in FILES if name.endswith("hub.json")]
    before = [json.loads((copy / name).read_text()) for name in names]
    write_address(copy, "https://github.com/Acme/Worker")
    for name, listing in zip(names, before, strict=True):
        changed = json.loads((copy / name).read_text())
        icon = changed.pop("iconUrl")
        assert icon == "https://raw.githubusercontent.com/Acme/Worker/main/.runpod/icon.svg"
        listing.pop("iconUrl", None)
        assert changed == listing
    assert (ROOT / ".runpod" / "icon.svg").is_file()


def test_an_address_can_be_written_again_and_replaced(copy: Path) -> None:
    write_address(copy, "https://github.com/Acme/Worker", "@Acme/reviewers")
    assert write_address(copy, "https://github.com/Acme/Worker/") == []
    assert (copy / ".github" / "CODEOWNERS").read_text() == "* @Acme/reviewers\n"
    write_address(copy, "https://github.com/other/place")
    assert (copy / ".github" / "CODEOWNERS").read_text() == "* @other\n"
    for name in FILES:
        assert not re.search(r"acme", (copy / name).read_text(), re.IGNORECASE), name


@pytest.mark.parametrize(
    "url", ["github.com/a/b", "https://github.com/a", "https://example.org/a/b", "a/b", ""]
)
def test_an_address_elsewhere_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is no address of the form"):
        parse(url)


def test_the_citation_has_the_version_and_the_license_of_the_project() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (citation["version"], citation["license"]) == (worker_version(), project["license"])
