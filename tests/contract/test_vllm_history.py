"""The record of vLLM's releases, checked against the installed one, and how it is updated."""

import re
from typing import get_args

import pytest
import vllm_history
from packaging.version import Version
from support import ROOT
from vllm_history import Release

from worker.settings import history
from worker.settings.history import Kind

INSTALLED = vllm_history.installed()
VERSION = Version(INSTALLED.version)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_nothing_in_the_installed_vllm_is_recorded_as_removed(kind: Kind) -> None:
    removals = {name: history.removal(kind, name) for name in INSTALLED.names[kind]}
    removed = {
        name
        for name, removal in removals.items()
        if removal and Version(removal.first_without) <= VERSION
    }
    assert removed == set()


@pytest.mark.parametrize("kind", ["options", "architectures"])
def test_options_of_later_releases_exist_from_their_first_release_on(kind: Kind) -> None:
    added = history.record()["added"][kind]
    expected = {name for name, first in added.items() if Version(first) <= VERSION}
    assert expected == added.keys() & set(INSTALLED.names[kind])


def test_where_the_installed_vllm_differs_from_the_page_of_settings_the_record_says_so() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    _, others = page.split("## All other options of vLLM")
    others, _ = others.split("## In newer releases of vLLM only")
    listed, installed = (
        set(re.findall(r"^\| `(\w+)`", others, re.M)),
        set(INSTALLED.names["options"]),
    )
    assert listed
    assert listed - installed <= history.record()["added"]["options"].keys()
    unlisted = {name for name in installed if f"`{name}`" not in page}
    assert unlisted <= history.record()["removed"]["options"].keys()


def release(version: str, *options: str) -> Release:
    return Release(version, {"options": [*options], "choices": [*options], "architectures": []})


def test_the_same_release_changes_nothing() -> None:
    assert vllm_history.update(history.record(), INSTALLED, INSTALLED) == history.record()


def test_options_that_a_release_removed_or_added_go_into_the_record() -> None:
    record = {
        "removed": {"options": {"OLD": "0.8.0 0.9.0"}, "choices": {}},
        "added": {"options": {}},
    }
    before, after = release("0.9.0", "DROPPED", "KEPT"), release("0.10.0", "KEPT", "NEW")
    assert vllm_history.update(record, before, after) == {
        "removed": {
            "options": {"OLD": "0.8.0 0.9.0", "DROPPED": "0.9.0 0.10.0"},
            "choices": {"DROPPED": "0.9.0 0.10.0"},
        },
        "added": {"options": {"NEW": "0.10.0"}},
    }


def test_an_option_that_comes_back_is_no_longer_recorded_as_removed() -> None:
    record = {"removed": {"options": {"BACK": "0.8.0 0.9.0"}, "choices": {}}, "added": {}}
    updated = vllm_history.update(record, release("0.9.0"), release("0.10.0", "BACK"))
    assert updated["removed"]["options"] == {}
