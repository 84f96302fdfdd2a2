"""The hub on loopback records exactly what it sends: what tests only see when it is wrong."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import get_session, hf_hub_url
from support.hub.files import Sent
from support.hub.server import MEMBER, Hub, commit
from support.hub.server import hub as running_hub

NAME, LARGE, SMALL = "org/name", "model.safetensors", "config.json"
CONTENT = random.Random(0).randbytes(300_000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / LARGE).write_bytes(CONTENT)
    (tmp_path / SMALL).write_text("{}")
    return tmp_path


@pytest.fixture
def hub(folder: Path) -> Iterator[Hub]:
    with running_hub() as running:
        running.add(NAME, folder)
        yield running


def get(hub: Hub, path: str = LARGE, **headers: str) -> bytes:
    address = hf_hub_url(NAME, path, endpoint=hub.endpoint)
    return get_session().get(address, headers=headers).content


def test_what_is_sent_is_on_record_to_the_byte(hub: Hub) -> None:
    assert get(hub, SMALL) == b"{}"
    assert hub.sent == [Sent(NAME, SMALL, 0, 2)]
    hub.clear()
    for first, last in ((10, 19), (15, 24), (19, 19), (20, 20)):
        assert get(hub, Range=f"bytes={first}-{last}") == CONTENT[first : last + 1]
    assert hub.transferred(NAME, LARGE) == 22
    assert hub.most_often(NAME, LARGE) == 3
    assert hub.transferred(NAME, SMALL) == hub.most_often(NAME, SMALL) == 0


def test_what_is_not_sent_to_a_client_that_went_away_is_not_on_record(folder: Path) -> None:
    with running_hub() as hub:
        hub.add(NAME, folder)
        hub.stalled = {LARGE}
        address = hf_hub_url(NAME, LARGE, endpoint=hub.endpoint)
        with get_session().stream("GET", address) as response:
            first = next(response.iter_raw())
        hub.stalled = set()
    assert len(first) <= hub.transferred(NAME, LARGE) < len(CONTENT)


def test_a_token_that_reaches_the_other_host_is_on_record(hub: Hub, folder: Path) -> None:
    place = f"{hub.endpoint}/elsewhere/{NAME}/{commit(folder)}/{SMALL}"
    get_session().get(place, headers={"Authorization": f"Bearer {MEMBER}"})
    assert hub.tokens_elsewhere == [MEMBER]
