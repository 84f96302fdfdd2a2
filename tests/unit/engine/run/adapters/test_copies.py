"""Copies of adapters: their limits, their removal, and files that are never copied."""

import contextlib
import itertools
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.models.lora import fake_client, make_adapter, set_config

from worker.engine.run.adapters import (
    DIRECTORY_PREFIX,
    AdapterCopies,
    Adapters,
    copy_adapter,
    remove_stale_copies,
)
from worker.engine.run.adapters.files import BrokenAdapter
from worker.errors import OnOtherVolume, RefusedByEngine
from worker.volume.adapters import CONFIG, WEIGHTS
from worker.volume.ids import VolumeLocation


class ServingModels:
    """Adapters of a fake client that loads every adapter, and the models that its server lists."""

    lora_resolvers = base_model_paths = ()

    def __init__(self, adapter: Path, model: Path, copies: AdapterCopies) -> None:
        numbers = itertools.count(1)
        self.lora_requests: dict[str, Any] = {}
        self.lora_id_counter = SimpleNamespace(inc=lambda _: next(numbers))
        self.copies = copies
        fake = fake_client(model)
        fake.add_lora = fake.remove_lora = self._accept
        fake.errored = False
        state = SimpleNamespace(openai_serving_models=self)
        location = VolumeLocation("euvolume01", "EU-RO-1")
        self.adapters = Adapters(adapter.parent.parent, fake, state, self.copies, location)

    async def _accept(self, _: Any) -> bool:
        return True

    def is_base_model(self, name: str) -> bool:
        return name == "base"

    async def get(self, name: str) -> Any:
        return await self.adapters.get_or_load(name)


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


@pytest.fixture
def three_adapters(adapter: Path, model: Path) -> Path:
    for name in ("b", "c"):
        make_adapter(adapter.parent / name, model)
    return adapter.rename(adapter.with_name("a"))


async def test_the_least_recently_used_adapter_is_removed_first(
    three_adapters: Path, model: Path
) -> None:
    serving = ServingModels(three_adapters, model, AdapterCopies(2, 10**9))
    for name in ("a", "b", "a", "c"):
        assert (await serving.get(name)).lora_name == name
    assert sorted(serving.lora_requests) == ["a", "c"]
    # The adapter is loaded again, from a new copy.
    assert (await serving.get("b")).lora_name == "b"
    assert sorted(serving.lora_requests) == ["b", "c"]


async def test_a_new_version_replaces_the_only_adapter_that_fits(
    adapter: Path, model: Path
) -> None:
    serving = ServingModels(adapter, model, AdapterCopies(1, 10**9))
    first = await serving.get("good")
    set_config(lora_alpha=4.5)(adapter)
    assert (await serving.get("good")).lora_path != first.lora_path


async def test_the_total_size_of_copies_is_limited(three_adapters: Path, model: Path) -> None:
    serving = ServingModels(
        three_adapters, model, AdapterCopies(100, 2 * size_of(three_adapters) + 1)
    )
    for name in "abc":
        await serving.get(name)
    assert sorted(serving.lora_requests) == ["b", "c"]


async def test_an_adapter_larger_than_the_limit_is_refused(
    three_adapters: Path, model: Path
) -> None:
    serving = ServingModels(three_adapters, model, AdapterCopies(100, 1000))
    with pytest.raises(RefusedByEngine, match=r"has [\d,]+ bytes, and this worker has room for"):
        await serving.get("a")
    assert serving.lora_requests == {}


async def test_a_copy_in_use_is_not_removed_and_a_further_adapter_is_refused(
    three_adapters: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = ServingModels(three_adapters, model, AdapterCopies(1, 10**9))
    used = [await serving.get("a"), await serving.get("b")]
    with pytest.raises(RefusedByEngine, match="are in use") as caught:
        await serving.get("c")
    assert caught.value.retryable
    assert all(size_of(Path(request.lora_path)) for request in used)
    # An unused copy stays until its grace period is over.
    del used[0]
    with pytest.raises(RefusedByEngine, match="are in use"):
        await serving.get("c")
    monkeypatch.setattr("worker.engine.run.adapters.GRACE_PERIOD_S", 0)
    assert (await serving.get("c")).lora_name == "c"
    assert size_of(Path(used[0].lora_path))
    assert [len(folders) for _, folders, _ in os.walk(serving.copies._copies_directory)] == [
        2,
        0,
        0,
    ]


async def test_unloaded_and_unknown_adapters_leave_nothing_behind(
    three_adapters: Path, model: Path
) -> None:
    serving = ServingModels(three_adapters, model, AdapterCopies(100, 10**9))
    for name in ("a", *(f"unknown-{number}" for number in range(100))):
        with contextlib.suppress(RefusedByEngine):
            await serving.get(name)
    await serving.adapters.unload("a")
    remembered = (serving.adapters._locks, serving.adapters._results, serving.lora_requests)
    assert [len(each) for each in remembered] == [0, 0, 0]


async def test_an_unknown_adapter_may_be_on_another_volume(adapter: Path, model: Path) -> None:
    serving = ServingModels(adapter, model, AdapterCopies(100, 10**9))
    for name in ("b", "b.vol-euvolume01"):
        with pytest.raises(RefusedByEngine, match=r"euvolume01 \(data center EU-RO-1\)\.$"):
            await serving.get(name)
    for request in (serving.get, serving.adapters.unload):
        with pytest.raises(OnOtherVolume, match=r"The adapter b\.vol-usvolume02 is on"):
            await request("b.vol-usvolume02")


@pytest.mark.parametrize("linked", [".", CONFIG, WEIGHTS])
def test_a_link_out_of_the_adapters_directory_is_not_copied(
    adapter: Path, tmp_path: Path, linked: str
) -> None:
    outside, copy = tmp_path / "outside", tmp_path / "copy"
    copy.mkdir()
    (adapter / linked).rename(outside)
    (adapter.parent / "good" if linked == "." else adapter / linked).symlink_to(outside)
    with pytest.raises(BrokenAdapter, match="not in the directory of the adapters"):
        copy_adapter(copy, adapter.parent, "good")


def test_copies_of_dead_workers_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    unused = 2**22 + 1  # above the largest id that Linux gives
    own, stale = (
        tmp_path / f"{DIRECTORY_PREFIX}{os.getpid()}-a",
        tmp_path / f"{DIRECTORY_PREFIX}{unused}-a",
    )
    for folder in (own, stale):
        (folder / "adapter").mkdir(parents=True)
    remove_stale_copies()
    assert (own.exists(), stale.exists()) == (True, False)
