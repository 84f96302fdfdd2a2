"""Adapters' files with Scale LLM Engine's client: by links over --serve, and in no job."""

from typing import Any

import httpx
import pytest
from support.processes.llm_engine import SERVE, Host

from worker.volume import Volume, links

ADAPTER = "mountain.tales"
OTHER = "desert.tales"


@pytest.fixture(scope="module")
def files(llm_engine: Host) -> dict[str, bytes]:
    """Put two adapters on the volume; return the files of the one that is downloaded."""
    llm_engine.adapter(OTHER)
    directory = llm_engine.adapter(ADAPTER)
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture(scope="module")
def answers(llm_engine: Host, files: dict[str, bytes]) -> dict[str, Any]:
    """Return the answers that the script got."""
    assert len(files) == 2
    return llm_engine.printed("downloads", ADAPTER)


def test_links_give_an_adapters_files_to_anybody(
    answers: dict[str, Any], files: dict[str, bytes]
) -> None:
    found = answers["files"]
    assert answers["again"] == sorted(files) == sorted(found)
    assert {one["status"] for one in found.values()} == {200}
    assert {name: bytes.fromhex(one["hex"]) for name, one in found.items()} == files


def test_a_changed_link_gives_nothing(answers: dict[str, Any]) -> None:
    assert len(answers["changed"]) >= 4
    for url, fetched in answers["changed"]:
        assert fetched["status"] in {400, 401, 403, 404}, url


@pytest.mark.parametrize(("valid_s", "status"), [(3600, 200), (-1, 401)])
def test_a_link_works_until_it_expires(
    valid_s: int,
    status: int,
    llm_engine: Host,
    files: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "VALID_S", valid_s)
    path = f"/v1/llm/model-files/{OTHER}/adapter_config.json"
    link = links.Links(Volume(llm_engine.volume)).signed(llm_engine.url, path)
    assert files
    assert httpx.get(link, timeout=60).status_code == status


def test_only_adapters_in_their_own_format_are_downloaded(answers: dict[str, Any]) -> None:
    assert answers["base"]["error"] == "BadRequestError"
    assert answers["format"]["error"] == "BadRequestError"
    assert "download_format" in answers["format"]["message"]


def test_a_link_leads_nowhere_once_the_adapter_is_deleted(answers: dict[str, Any]) -> None:
    assert (answers["deleted"], answers["link"]) == (True, 404)


def test_a_job_holds_no_file_of_an_adapter(host: Host) -> None:
    if host.way == SERVE:
        pytest.skip("it has links")
    host.adapter(OTHER)
    refusal = host.printed("downloads", OTHER, "refused")
    assert refusal["error"] == "BadRequestError"
    assert "volume" in refusal["message"]
