"""The README's badges that need no server: the tested releases of vLLM, the license, the pages."""

import tomllib
from pathlib import Path

from packaging.version import Version
from release.plan import vllm_version

ROOT = Path(__file__).parent.parent
# Pixels of a character in the font of badges, on average, and around a text.
_CHARACTER, _PADDING = 6.6, 12
_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img">
  <title>{name}: {value}</title>
  <clipPath id="c"><rect width="{width}" height="20" rx="3"/></clipPath>
  <g clip-path="url(#c)">
    <rect width="{left}" height="20" fill="#555"/>
    <rect x="{left}" width="{right}" height="20" fill="{color}"/>
  </g>
  <g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
    <text x="{name_at}" y="14">{name}</text>
    <text x="{value_at}" y="14">{value}</text>
  </g>
</svg>
"""


def build_files() -> dict[str, str]:
    """Return the badges by their paths."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = [file.stem for file in (ROOT / "tests" / "vllm-releases").glob("*.txt")]
    releases = sorted(Version(release) for release in (*pinned, vllm_version()))
    oldest, newest = (f"{one.major}.{one.minor}" for one in (releases[0], releases[-1]))
    values = {
        "vllm": ("vLLM", f"{oldest} to {newest}", "#3572a5"),
        "license": ("license", project["license"], "#2e7d32"),
        "docs": ("docs", "guide and reference", "#3572a5"),
    }
    return {f"docs/badges/{file}.svg": _draw(*badge) for file, badge in values.items()}


def _draw(name: str, value: str, color: str) -> str:
    left, right = (round(len(text) * _CHARACTER) + _PADDING for text in (name, value))
    at = {"name_at": left / 2, "value_at": left + right / 2, "width": left + right}
    return _SVG.format(name=name, value=value, color=color, left=left, right=right, **at)
