"""The repository's address, which one command writes everywhere: ``python -m release address URL``.

``[project.urls]`` in pyproject.toml has it; all other places are written from there.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

PLACEHOLDER = "OWNER/REPOSITORY"

_URL = re.compile(r"https://github\.com/(?P<slug>[\w-]+/[\w.-]+?)(?:\.git)?/?")
_LISTINGS = (".runpod/hub.json", ".runpod/load-balancing/hub.json")
_BADGES = re.compile(r"^\[!\[.*\n", re.MULTILINE)
# Keys that a line of a YAML file has after another one, by file.
_YAML_AFTER = {"mkdocs.yml": "site_name", "CITATION.cff": "license"}


def read_slug(root: Path) -> str | None:
    """Return ``OWNER/REPOSITORY`` of the project; None if it has no address yet."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    url = project.get("urls", {}).get("Repository")
    return parse(url) if url else None


def parse(url: str) -> str:
    """Return ``OWNER/REPOSITORY`` of a repository's URL.

    Raises:
        ValueError: If it is none on GitHub, whose workflows and registry a release uses.
    """
    found = _URL.fullmatch(url)
    if not found:
        raise ValueError(f"{url} is no address of the form https://github.com/{PLACEHOLDER}")
    return found["slug"]


def icon_url(slug: str) -> str:
    """Return the address of the listing's icon; the platform's hub takes no paths."""
    return f"https://raw.githubusercontent.com/{slug}/main/.runpod/icon.svg"


def site_url(slug: str) -> str:
    owner, _, name = slug.partition("/")
    return f"https://{owner.lower()}.github.io/{name}/"


def fill_in(text: str, slug: str, former: str = PLACEHOLDER) -> str:
    """Replace an address in a text; names of images are in lower case."""
    lowered = text.replace(f"ghcr.io/{former.lower()}", f"ghcr.io/{slug.lower()}")
    lowered = lowered.replace(f"ghcr.io/{former}", f"ghcr.io/{slug.lower()}")
    return lowered.replace(former, slug)


def badges(slug: str | None) -> str:
    """Return the README's line of badges. Without an address it has those that need none."""
    found = [
        _badge("vLLM releases", "docs/badges/vllm.svg", "CONTRIBUTING.md"),
        _badge("license", "docs/badges/license.svg", "LICENSE"),
        _badge("docs", "docs/badges/docs.svg", site_url(slug) if slug else "docs/README.md"),
    ]
    if slug:
        workflow = f"https://github.com/{slug}/actions/workflows/check.yml"
        hub = f"https://console.runpod.io/hub/{slug}"
        found.insert(0, _badge("tests", f"{workflow}/badge.svg", workflow))
        found.append(_badge("RunPod", f"https://api.runpod.io/badge/{slug}", hub))
    return " ".join(found) + "\n"


def _badge(name: str, image: str, link: str) -> str:
    return f"[![{name}]({image})]({link})"


def with_address(root: Path, slug: str, owners: str | None = None) -> dict[str, str]:
    """Return the contents of all files with the address, by their paths.

    Args:
        root: Root directory of the repository.
        slug: The address, as ``OWNER/REPOSITORY``.
        owners: Who reviews changes; by default those that CODEOWNERS has, or ``@OWNER``.
    """

    def read(name: str) -> str:
        return (root / name).read_text()

    former = read_slug(root)
    home = f"https://github.com/{slug}"
    urls = {
        "Repository": home,
        "Documentation": site_url(slug),
        "Changelog": f"{home}/blob/main/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }
    table = "[project.urls]\n" + "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    project = re.sub(r"\[project\.urls\]\n(?:\w+ = .+\n)+\n", "", read("pyproject.toml"))
    extras = "[project.optional-dependencies]\n"
    yaml = {
        "mkdocs.yml": {"site_url": site_url(slug), "repo_url": home},
        "CITATION.cff": {"repository-code": home, "url": site_url(slug)},
    }
    codeowners = root / ".github" / "CODEOWNERS"
    if owners is None and codeowners.is_file() and former == slug:
        owners = codeowners.read_text().split("* ")[-1].strip()
    return {
        "pyproject.toml": project.replace(extras, f"{table}\n{extras}"),
        "README.md": _BADGES.sub(badges(slug), read("README.md"), count=1),
        "docs/releasing.md": fill_in(read("docs/releasing.md"), slug, former or PLACEHOLDER),
        ".github/CODEOWNERS": f"* {owners or '@' + slug.partition('/')[0]}\n",
        **{name: _with_keys(read(name), _YAML_AFTER[name], yaml[name]) for name in yaml},
        **{name: _with_icon(json.loads(read(name)), slug) for name in _LISTINGS},
    }


def _with_keys(text: str, after: str, values: dict[str, str]) -> str:
    """Set keys of a YAML document, which follow another one."""
    kept = re.sub(rf"(?m)^(?:{'|'.join(values)}):.*\n", "", text)
    lines = "".join(f"{key}: {value}\n" for key, value in values.items())
    return re.sub(rf"(?m)^{after}:.*\n", lambda found: found[0] + lines, kept)


def _with_icon(listing: dict[str, Any], slug: str) -> str:
    """Set the icon as the generator of the listings does (builder/forms.py)."""
    fields: dict[str, Any] = {}
    for name, value in listing.items():
        if name != "iconUrl":
            fields[name] = value
        if name == "category":
            fields["iconUrl"] = icon_url(slug)
    return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"


def write_address(root: Path, url: str, owners: str | None = None) -> list[str]:
    """Write the address to all files; return the paths of those that have changed."""
    changed = []
    for name, content in with_address(root, parse(url), owners).items():
        file = root / name
        if not file.is_file() or file.read_text() != content:
            file.write_text(content)
            changed.append(name)
    return changed
