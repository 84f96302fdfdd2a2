"""The parts of a release, each read from its single source, and their problems."""

import re
from dataclasses import dataclass
from pathlib import Path

from release.address import PLACEHOLDER, read_slug
from release.notes import Section, find_mistakes, news_files, sections

ROOT = Path(__file__).parents[2]

_VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
_VLLM = re.compile(r"^ARG VLLM_VERSION=(\S+)$", re.MULTILINE)
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


def worker_version(root: Path = ROOT) -> str:
    """Read the version of the worker and its client."""
    return _find_one(_VERSION, root / "src" / "llm_worker_client" / "__init__.py")


def vllm_version(root: Path = ROOT) -> str:
    """Read the release of vLLM on which the image is built."""
    return _find_one(_VLLM, root / "Dockerfile")


def _find_one(pattern: re.Pattern[str], file: Path) -> str:
    (found,) = pattern.findall(file.read_text())
    return str(found)


def image_tag(root: Path = ROOT) -> str:
    """Return the image's immutable tag, such as ``0.1.0-vllm0.32.0``."""
    return f"{worker_version(root)}-vllm{vllm_version(root)}"


@dataclass(frozen=True)
class Plan:
    """A release with a git tag.

    Args:
        tag: The git tag, such as ``v0.1.0``.
        images: Names of the image with their tags.
        base: Name of the base image; a release needs its digest.
        section: The section of the changelog; None if there is no section for this version.
        problems: Reasons why it can't be released, one sentence each.
    """

    tag: str
    images: tuple[str, ...]
    base: str
    section: Section | None
    problems: tuple[str, ...]


def plan(tag: str, image: str, root: Path = ROOT) -> Plan:
    """Collect the parts of a release, and find those that are missing or contradict each other.

    Args:
        tag: The git tag.
        image: Name of the image without a tag; it is converted to lower case, as registries
            require.
        root: Root directory of the repository.
    """
    version = worker_version(root)
    base = (root / "builder" / "release" / "base-image.txt").read_text().strip()
    section = sections((root / "CHANGELOG.md").read_text()).get(version)
    images = tuple(f"{image.lower()}:{suffix}" for suffix in (image_tag(root), "stable"))
    problems = find_mistakes(root)
    if read_slug(root) is None:
        problems.append(
            "the project has no address: run python -m release address "
            f"https://github.com/{PLACEHOLDER}"
        )
    if news := news_files(root):
        names = ", ".join(file.name for file in news)
        problems.append(f"not in CHANGELOG.md yet: {names}; run nox -s notes")
    if tag != f"v{version}":
        problems.append(f"the tag is {tag}, but llm_worker_client.__version__ is {version}")
    if section is None:
        problems.append(f"CHANGELOG.md has no section [{version}]: run nox -s notes")
    elif section.date is None:
        problems.append(f"CHANGELOG.md: [{version}] has no date of release: run nox -s notes")
    expected = f"docker.io/vllm/vllm-openai:v{vllm_version(root)}"
    if _DIGEST.sub("", base) != expected:
        problems.append(
            f"base-image.txt has {base}, the Dockerfile {expected}: "
            "run python -m release base-image"
        )
    elif base == expected:
        problems.append("base-image.txt has no digest: run python -m release base-image")
    return Plan(tag, images, base, section, tuple(problems))
