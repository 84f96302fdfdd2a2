"""What releases of vLLM moved: the record, checked against the installed one, and the news."""

import re
from typing import get_args

import pytest
import vllm_history
import vllm_news
from packaging.version import Version
from support import ROOT
from vllm_history import Release

from worker.settings import history
from worker.settings.history import Kind

INSTALLED = vllm_history.installed()
VERSION = Version(INSTALLED.version)

# The record:


@pytest.mark.parametrize("kind", get_args(Kind))
def test_nothing_in_the_installed_vllm_is_recorded_as_removed(kind: Kind) -> None:
    removals = {name: history.removal(kind, name) for name in INSTALLED.names[kind]}
    assert not [
        name
        for name, removal in removals.items()
        if removal and Version(removal.first_without) <= VERSION
    ]


@pytest.mark.parametrize("kind", ["options", "architectures"])
def test_options_of_later_releases_exist_from_their_first_release_on(kind: Kind) -> None:
    added = history.record()["added"][kind]
    expected = {name for name, first in added.items() if Version(first) <= VERSION}
    assert expected == added.keys() & set(INSTALLED.names[kind])


def test_where_the_installed_vllm_differs_from_the_page_of_settings_the_record_says_so() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    _, others = page.split("## All other options of vLLM")
    others, _ = others.split("## In newer releases of vLLM only")
    listed = set(re.findall(r"^\| `(\w+)`", others, re.M))
    installed = set(INSTALLED.names["options"])
    assert listed
    assert listed - installed <= history.record()["added"]["options"].keys()
    unlisted = {name for name in installed if f"`{name}`" not in page}
    assert unlisted <= history.record()["removed"]["options"].keys()


def release(version: str, *options: str) -> Release:
    return Release(version, {"options": [*options], "choices": [*options], "architectures": []})


def test_what_a_release_removed_or_added_is_recorded_until_it_is_back() -> None:
    assert vllm_history.update(history.record(), INSTALLED, INSTALLED) == history.record()
    old = {"OLD": "0.8.0 0.9.0"}
    record = {
        "removed": {"options": {**old, "BACK": "0.8.0 0.9.0"}, "choices": {}},
        "added": {"options": {}},
    }
    before, after = release("0.9.0", "DROPPED", "KEPT"), release("0.10.0", "KEPT", "BACK")
    dropped = {"DROPPED": "0.9.0 0.10.0"}
    assert vllm_history.update(record, before, after) == {
        "removed": {"options": {**old, **dropped}, "choices": dropped},
        "added": {"options": {"BACK": "0.10.0"}},
    }


# The news:


def test_what_came_went_differs_or_can_not_be_read_is_a_line_each() -> None:
    def news(before: dict[str, str], after: dict[str, str] | str) -> str:
        same: dict[str, dict[str, str]] = {kind: {} for kind in vllm_news._KINDS}
        first: vllm_news.Release = {**same, "version": "1.0", "routes": before}
        return vllm_news.news(first, {**same, "version": "1.1", "routes": after})

    found = news(
        {"/gone": "GET", "/kept": "GET", "/changed": "GET"},
        {"/new": "", "/kept": "GET", "/changed": "GET POST"},
    )
    assert found.startswith("vLLM 1.1 against 1.0:")
    assert "routes\n  + /new\n  - /gone: GET\n  ~ /changed: GET -> GET POST\n" in found
    assert found.count("nothing moved") == len(vllm_news._KINDS) - 1
    assert "routes\n  could not be read: Moved: x\n" in news({"/gone": "GET"}, "Moved: x")
