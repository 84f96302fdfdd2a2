"""What a release is made of, read from where each part has its one place, and what it lacks."""

import re
from dataclasses import dataclass
from pathlib import Path

from release.changelog import Section, sections

ROOT = Path(__file__).parents[2]

_VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
_VLLM = re.compile(r"^ARG VLLM_VERSION=(\S+)$", re.MULTILINE)
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


def worker_version(root: Path = ROOT) -> str:
    """Read the version of the worker and its client."""
    return _only(_VERSION, root / "src" / "llm_worker_client" / "__init__.py")


def vllm_version(root: Path = ROOT) -> str:
    """Read the release of vLLM that the image is built on."""
    return _only(_VLLM, root / "Dockerfile")


def image_tag(root: Path = ROOT) -> str:
    """Return the image's tag that never moves, such as ``0.1.0-vllm0.32.0``."""
    return f"{worker_version(root)}-vllm{vllm_version(root)}"


@dataclass(frozen=True)
class Plan:
    """A release under a tag of git.

    Args:
        tag: such as ``v0.1.0``.
        images: names of the image, with their tags.
        base: the image that it is built on, in a release with its digest.
        section: of the changelog; None if it has none for this version.
        problems: why it can't be released, a sentence each.
    """

    tag: str
    images: tuple[str, ...]
    base: str
    section: Section | None
    problems: tuple[str, ...]


def plan(tag: str, image: str, root: Path = ROOT) -> Plan:
    """Gather the parts of a release, and find what is missing or contradicts.

    Args:
        tag: of git.
        image: the image's name without a tag; registries take it in lower case only.
        root: of the repository.
    """
    base = (root / "builder" / "release" / "base-image.txt").read_text().strip()
    section = sections((root / "CHANGELOG.md").read_text()).get(worker_version(root))
    images = tuple(f"{image.lower()}:{one}" for one in (image_tag(root), "stable"))
    return Plan(tag, images, base, section, tuple(_problems(tag, base, section, root)))


def _problems(tag: str, base: str, section: Section | None, root: Path) -> list[str]:
    version, problems = worker_version(root), []
    if tag != f"v{version}":
        problems.append(f"the tag is {tag}, but llm_worker_client.__version__ is {version}")
    if section is None:
        problems.append(f"CHANGELOG.md has no section [{version}]")
    elif section.date is None:
        problems.append(f"CHANGELOG.md: no date of release: ## [{version}] - YYYY-MM-DD")
    wanted = f"vllm/vllm-openai:v{vllm_version(root)}"
    if _DIGEST.sub("", base) != wanted:
        problems.append(f"base-image.txt has {base}, the Dockerfile {wanted}: run make base-image")
    elif base == wanted:
        problems.append("base-image.txt has no digest: run make base-image")
    return problems


def _only(pattern: re.Pattern[str], file: Path) -> str:
    (found,) = pattern.findall(file.read_text())
    return str(found)
