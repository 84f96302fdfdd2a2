"""The hub on loopback records exactly what it sends, and has the faults that tests set."""

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import pytest
from huggingface_hub import (
    HfApi,
    constants,
    errors,
    get_hf_file_metadata,
    get_session,
    hf_hub_download,
    hf_hub_url,
)
from huggingface_hub.file_download import http_get
from support.hub.files import Sent
from support.hub.server import MEMBER, Hub, blob, commit, hub
from support.processes.background import HUNG_S, wait_until

NAME = "org/name"
LARGE = "model.safetensors"
SMALL = "config.json"
CONTENT = random.Random(0).randbytes(300_000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "repository"
    place.mkdir()
    (place / LARGE).write_bytes(CONTENT)
    (place / SMALL).write_text("{}")
    return place


@pytest.fixture
def served(folder: Path) -> Iterator[Hub]:
    with hub() as running:
        running.add(NAME, folder)
        yield running


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the library keep what came before a cut: by default it drops up to 10 MiB."""
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)


def address(served: Hub, path: str = LARGE) -> str:
    return hf_hub_url(NAME, path, endpoint=served.endpoint)


def get(served: Hub, have: bytes = b"") -> bytes:
    """Fetch the large file, or the rest of it, with the library."""
    file = BytesIO(have)
    file.seek(len(have))
    http_get(address(served), file, resume_size=len(have))
    return file.getvalue()


def part(served: Hub, asked: str, token: str = "") -> bytes:
    """Fetch a range of the large file over the library's connection."""
    headers = {"Range": f"bytes={asked}", **({"Authorization": f"Bearer {token}"} if token else {})}
    answer = get_session().get(address(served), headers=headers)
    assert answer.status_code == 206
    return answer.content


def sent(served: Hub) -> list[tuple[int, int]]:
    return [(part.start, part.end) for part in served.sent]


def test_what_is_downloaded_is_on_record_to_the_byte(served: Hub, cache: Path) -> None:
    for path in (LARGE, SMALL):
        hf_hub_download(NAME, path, endpoint=served.endpoint, cache_dir=cache, token=False)
    assert served.sent == [Sent(NAME, LARGE, 0, len(CONTENT)), Sent(NAME, SMALL, 0, 2)]
    assert served.transferred(NAME, LARGE) == len(CONTENT)
    assert served.most_often(NAME, LARGE) == 1


def test_what_was_not_sent_was_transferred_never(served: Hub) -> None:
    get(served)
    for repository, path in ((NAME, SMALL), ("org/other", LARGE)):
        assert served.transferred(repository, path) == 0
        assert served.most_often(repository, path) == 0


def test_a_byte_sent_again_is_counted_again(served: Hub) -> None:
    assert part(served, "10-19") == CONTENT[10:20]
    assert part(served, "15-24") == CONTENT[15:25]
    assert part(served, "19-19") == CONTENT[19:20]
    assert part(served, "20-20") == CONTENT[20:21]
    assert served.transferred(NAME, LARGE) == 22
    assert served.most_often(NAME, LARGE) == 3


def test_a_resumed_download_is_sent_the_rest(served: Hub) -> None:
    assert get(served, have=CONTENT[:70_000]) == CONTENT
    assert sent(served) == [(70_000, len(CONTENT))]


def test_a_range_beyond_the_end_is_refused(served: Hub) -> None:
    with pytest.raises(errors.HfHubHTTPError) as raised:
        get(served, have=CONTENT)
    assert raised.value.response.status_code == 416
    assert raised.value.response.headers["Content-Range"] == f"bytes */{len(CONTENT)}"
    assert served.sent == []


@pytest.mark.parametrize("path", [LARGE, SMALL])
@pytest.mark.parametrize("redirects", [True, False])
def test_what_a_file_is_can_be_asked_without_it(
    served: Hub, folder: Path, path: str, redirects: bool
) -> None:
    served.redirects = redirects
    metadata = get_hf_file_metadata(address(served, path), token=False)
    assert (metadata.etag, metadata.size) == (blob(folder / path), (folder / path).stat().st_size)
    assert metadata.commit_hash == commit(folder)
    assert served.sent == []


def test_a_large_file_is_named_for_its_sha256(served: Hub) -> None:
    metadata = get_hf_file_metadata(address(served), token=False)
    assert metadata.etag == sha256(CONTENT).hexdigest()


def test_all_connections_share_a_throttled_line(served: Hub) -> None:
    served.throttle = 1_000_000
    begun = time.monotonic()
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(get, [served, served])) == [CONTENT, CONTENT]
    # One alone takes half of that.
    assert time.monotonic() - begun > 2 * len(CONTENT) / served.throttle * 0.9


def test_what_is_not_sent_to_a_client_that_went_away_is_not_on_record(folder: Path) -> None:
    with hub() as served:
        served.add(NAME, folder)
        served.throttle = 100_000
        with get_session().stream("GET", address(served)) as response:
            first = next(response.iter_raw())
        served.throttle = None
    assert len(first) <= served.transferred(NAME, LARGE) < len(CONTENT)


@pytest.mark.usefixtures("_small_pieces")
def test_a_connection_is_cut_as_often_as_asked(served: Hub) -> None:
    served.cut_after, served.cuts = 100_000, 1
    assert get(served) == CONTENT
    assert sent(served) == [(0, 100_000), (100_000, len(CONTENT))]


def test_without_a_number_every_answer_that_is_long_enough_is_cut(served: Hub) -> None:
    served.cut_after = 100_000
    for _ in range(2):
        with (
            pytest.raises(errors.HTTPError),  # type: ignore[attr-defined]  # for its own use
            get_session().stream("GET", address(served)) as response,
        ):
            response.read()
    assert sent(served) == [(0, 100_000)] * 2
    assert get(served, have=CONTENT[:200_000]) == CONTENT


def test_a_rate_limited_download_is_waited_for(served: Hub) -> None:
    served.faults = [429]
    assert get(served) == CONTENT
    assert len(served.requests) == 2


def test_every_fault_applies_once(served: Hub) -> None:
    served.faults = [500, 503]
    api = HfApi(endpoint=served.endpoint, token=False)
    for status in (500, 503):
        with pytest.raises(errors.HfHubHTTPError) as raised:
            api.model_info(NAME)
        assert raised.value.response.status_code == status
    assert api.model_info(NAME).id == NAME


@pytest.mark.parametrize("old", ["org/old", "old"])
def test_a_renamed_model_is_found_by_its_old_name(
    served: Hub, folder: Path, cache: Path, old: str
) -> None:
    served.moved[old] = NAME
    api = HfApi(endpoint=served.endpoint, token=False)
    info = api.model_info(old, files_metadata=True)
    assert (info.id, info.sha) == (NAME, commit(folder))
    assert [sibling.size for sibling in info.siblings or ()] == [2, len(CONTENT)]
    copy = hf_hub_download(old, LARGE, endpoint=served.endpoint, cache_dir=cache, token=False)
    assert Path(copy).read_bytes() == CONTENT


def test_a_name_that_only_begins_like_an_old_one_is_another(served: Hub) -> None:
    served.moved["org/na"] = "org/none"
    assert HfApi(endpoint=served.endpoint, token=False).model_info(NAME).id == NAME


@pytest.mark.parametrize("have", [0, 70_000])
def test_a_wrong_file_has_the_right_size(served: Hub, have: int) -> None:
    served.wrong = {LARGE}
    got = get(served, have=CONTENT[:have])
    assert (len(got), got[:-1]) == (len(CONTENT), CONTENT[:-1])
    assert got[-1] != CONTENT[-1]


def test_only_the_files_named_are_wrong(served: Hub) -> None:
    served.wrong = {SMALL}
    assert part(served, "0-99") == CONTENT[:100]
    assert get(served) == CONTENT


def test_a_hub_may_send_the_whole_file_to_a_client_that_has_a_part(served: Hub) -> None:
    served.ignores_ranges = True
    assert get(served, have=CONTENT[:70_000]) == CONTENT
    assert sent(served) == [(0, len(CONTENT))]


def test_a_stalled_file_stops_in_the_middle_until_it_is_let_go(served: Hub) -> None:
    served.stalled = {LARGE}
    with ThreadPoolExecutor() as pool:
        getting = pool.submit(get, served)
        wait_until(lambda: served.transferred(NAME, LARGE) >= len(CONTENT) // 2)
        time.sleep(0.1)
        assert (served.transferred(NAME, LARGE), getting.done()) == (len(CONTENT) // 2, False)
        served.stalled = set()
        assert getting.result(HUNG_S) == CONTENT
    assert sent(served) == [(0, len(CONTENT))]


def test_a_file_can_be_answered_with_a_status(served: Hub) -> None:
    served.statuses[LARGE] = 404
    with pytest.raises(errors.HfHubHTTPError) as raised:
        get(served)
    assert raised.value.response.status_code == 404
    assert served.sent == []


def test_more_bytes_at_once_than_allowed_are_refused(served: Hub) -> None:
    served.longest = 10
    with pytest.raises(errors.BadRequestError):
        get(served)
    assert part(served, "5-14") == CONTENT[5:15]
    assert sent(served) == [(5, 15)]


def test_large_files_may_be_on_a_host_that_gets_no_token(served: Hub, cache: Path) -> None:
    served.redirects, served.repositories[NAME].gated = True, True
    for path in (LARGE, SMALL):
        copy = hf_hub_download(NAME, path, endpoint=served.endpoint, cache_dir=cache, token=MEMBER)
        assert Path(copy).stat().st_size == (len(CONTENT) if path == LARGE else 2)
    assert served.tokens_elsewhere == [None]
    assert part(served, "5-9", MEMBER) == CONTENT[5:10]
    assert served.tokens_elsewhere == [None, None]
    assert sent(served) == [(0, len(CONTENT)), (0, 2), (5, 10)]


def test_a_token_that_reaches_the_other_host_is_on_record(served: Hub, folder: Path) -> None:
    place = f"{served.endpoint}/elsewhere/{NAME}/{commit(folder)}/{SMALL}"
    get_session().get(place, headers={"Authorization": f"Bearer {MEMBER}"})
    assert served.tokens_elsewhere == [MEMBER]


def test_what_was_asked_and_sent_can_be_forgotten(served: Hub) -> None:
    served.redirects = True
    get(served)
    served.clear()
    assert (served.requests, served.sent, served.tokens_elsewhere) == ([], [], [])
    get(served)
    assert served.most_often(NAME, LARGE) == 1
