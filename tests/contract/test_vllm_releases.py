"""Tests of the record of options that vLLM's releases added or removed, and of the release news."""

import re
from typing import get_args

import pytest
import vllm_history
import vllm_news
from packaging.version import Version
from support import ROOT
from vllm_history import Release

from worker.settings import history
from worker.settings.history import EntryKind

INSTALLED = vllm_history.read_installed()
VERSION = Version(INSTALLED.version)

# The record:


@pytest.mark.parametrize("kind", get_args(EntryKind))
def test_nothing_in_the_installed_vllm_is_recorded_as_removed(kind: EntryKind) -> None:
    removals = {name: history.find_removal(kind, name) for name in INSTALLED.names[kind]}
    assert not [
        name
        for name, removal in removals.items()
        if removal and Version(removal.first_without) <= VERSION
    ]


@pytest.mark.parametrize("kind", ["options", "architectures"])
def test_added_options_exist_from_their_first_release_on(kind: EntryKind) -> None:
    added = history.load_history()["added"][kind]
    expected = {name for name, first in added.items() if Version(first) <= VERSION}
    assert expected == added.keys() & set(INSTALLED.names[kind])


def test_the_record_has_every_difference_between_the_installed_vllm_and_the_settings_page() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    _, others = page.split("## All other options of vLLM")
    others, _ = others.split("## In newer releases of vLLM only")
    listed = set(re.findall(r"^\| `(\w+)`", others, re.M))
    installed = set(INSTALLED.names["options"])
    assert listed
    assert listed - installed <= history.load_history()["added"]["options"].keys()
    unlisted = {name for name in installed if f"`{name}`" not in page}
    assert unlisted <= history.load_history()["removed"]["options"].keys()


def release(version: str, *options: str) -> Release:
    return Release(version, {"options": [*options], "choices": [*options], "architectures": []})


def test_removed_and_added_options_are_recorded_until_they_return() -> None:
    assert (
        vllm_history.update(history.load_history(), INSTALLED, INSTALLED) == history.load_history()
    )
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


def test_each_added_removed_changed_or_unreadable_entry_is_one_line() -> None:
    def news(before: dict[str, str], after: dict[str, str] | str) -> str:
        same: dict[str, dict[str, str]] = {kind: {} for kind in vllm_news._KINDS}
        first: vllm_news.Release = {**same, "version": "1.0", "routes": before}
        return vllm_news.compare_releases(first, {**same, "version": "1.1", "routes": after})

    found = news(
        {"/gone": "GET", "/kept": "GET", "/changed": "GET"},
        {"/new": "", "/kept": "GET", "/changed": "GET POST"},
    )
    assert found.startswith("vLLM 1.1 compared with 1.0:")
    assert "routes\n  + /new\n  - /gone: GET\n  ~ /changed: GET -> GET POST\n" in found
    assert found.count("nothing moved") == len(vllm_news._KINDS) - 1
    assert "routes\n  could not be read: Moved: x\n" in news({"/gone": "GET"}, "Moved: x")
