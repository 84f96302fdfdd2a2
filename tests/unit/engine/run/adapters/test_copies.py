"""Copies of adapters: how many there are, which goes first, and what is never copied."""

import contextlib
import itertools
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.models.lora import client, make_adapter

from worker.engine.run.adapters import Adapters
from worker.engine.run.adapters.copies import (
    COPIES,
    Copies,
    fill,
    remove_copies_of_ended_processes,
)
from worker.engine.run.adapters.files import BrokenAdapter
from worker.errors import RefusedByEngine
from worker.volume.adapters import CONFIG, WEIGHTS


class Served:
    """The adapters of a client that loads whatever it is asked to, and what its server lists."""

    lora_resolvers = base_model_paths = ()

    def __init__(self, adapter: Path, model: Path, room: Copies) -> None:
        numbers = itertools.count(1)
        self.lora_requests: dict[str, Any] = {}
        self.lora_id_counter = SimpleNamespace(inc=lambda _: next(numbers))
        self.copies = room
        fake = client(model)
        fake.add_lora = fake.remove_lora = self._accept
        fake.errored = False
        state = SimpleNamespace(openai_serving_models=self)
        self.adapters = Adapters(adapter.parent.parent, fake, state, self.copies)

    async def _accept(self, _: Any) -> bool:
        return True

    def is_base_model(self, name: str) -> bool:
        return name == "base"

    async def get(self, name: str) -> Any:
        return await self.adapters.get(name)


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


@pytest.fixture
def three(adapter: Path, model: Path) -> Path:
    for name in ("b", "c"):
        make_adapter(adapter.parent / name, model)
    return adapter.rename(adapter.with_name("a"))


async def test_the_least_recently_named_adapter_makes_room(three: Path, model: Path) -> None:
    served = Served(three, model, Copies(2, 10**9))
    for name in ("a", "b", "a", "c"):
        assert (await served.get(name)).lora_name == name
    assert sorted(served.lora_requests) == ["a", "c"]
    # It is loaded again, from a copy of its own.
    assert (await served.get("b")).lora_name == "b"
    assert sorted(served.lora_requests) == ["b", "c"]


async def test_bytes_are_bounded_as_the_number_is(three: Path, model: Path) -> None:
    served = Served(three, model, Copies(100, 2 * size_of(three) + 1))
    for name in "abc":
        await served.get(name)
    assert sorted(served.lora_requests) == ["b", "c"]


async def test_an_adapter_that_is_larger_than_all_room_is_refused(three: Path, model: Path) -> None:
    served = Served(three, model, Copies(100, 1000))
    with pytest.raises(RefusedByEngine, match=r"has [\d,]+ bytes, and this worker has room for"):
        await served.get("a")
    assert served.lora_requests == {}


async def test_a_copy_that_a_request_uses_stays_and_none_is_made_beyond_the_room(
    three: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(three, model, Copies(1, 10**9))
    used = [await served.get("a"), await served.get("b")]
    with pytest.raises(RefusedByEngine, match="are in use") as caught:
        await served.get("c")
    assert caught.value.retryable
    assert all(size_of(Path(request.lora_path)) for request in used)
    # Not before its time, though nothing uses it any more.
    del used[0]
    with pytest.raises(RefusedByEngine, match="are in use"):
        await served.get("c")
    monkeypatch.setattr("worker.engine.run.adapters.copies.GRACE_S", 0)
    assert (await served.get("c")).lora_name == "c"
    assert size_of(Path(used[0].lora_path))
    assert [len(folders) for _, folders, _ in os.walk(served.copies._folder)] == [2, 0, 0]


async def test_no_name_leaves_anything_behind(three: Path, model: Path) -> None:
    served = Served(three, model, Copies(100, 10**9))
    for name in ("a", *(f"unknown-{number}" for number in range(100))):
        with contextlib.suppress(RefusedByEngine):
            await served.get(name)
    await served.adapters.unload("a")
    remembered = (served.adapters._locks, served.adapters._known, served.lora_requests)
    assert [len(each) for each in remembered] == [0, 0, 0]


@pytest.mark.parametrize("linked", [".", CONFIG, WEIGHTS])
def test_a_link_that_leads_out_is_not_copied(adapter: Path, tmp_path: Path, linked: str) -> None:
    outside, copy = tmp_path / "outside", tmp_path / "copy"
    copy.mkdir()
    (adapter / linked).rename(outside)
    (adapter.parent / "good" if linked == "." else adapter / linked).symlink_to(outside)
    with pytest.raises(BrokenAdapter, match="not in the directory of the adapters"):
        fill(copy, adapter.parent, "good")


def test_dead_workers_copies_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    unused = 2**22 + 1  # above the largest id that Linux gives
    mine, left = tmp_path / f"{COPIES}{os.getpid()}-a", tmp_path / f"{COPIES}{unused}-a"
    for folder in (mine, left):
        (folder / "adapter").mkdir(parents=True)
    remove_copies_of_ended_processes()
    assert (mine.exists(), left.exists()) == (True, False)
