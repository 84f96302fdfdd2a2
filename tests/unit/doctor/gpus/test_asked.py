"""What `--gpu` and `--prices` take, and what they say of the rest."""

from pathlib import Path

import pytest

from worker.doctor.gpus.asked import choice, read_prices
from worker.doctor.gpus.pools import POOLS
from worker.errors import StartFailed


@pytest.mark.parametrize(
    ("text", "types", "count"),
    [
        ("ADA_24", ["RTX 4090"], 1),
        ("ada_24x2", ["RTX 4090"], 2),
        ("A40x2", ["A40"], 2),
        ("NVIDIA A40 x 4", ["A40"], 4),
        ("4090", ["RTX 4090"], 1),
        ("nvidia geforce rtx 3090", ["RTX 3090"], 1),
        ("L40", ["L40"], 1),
        ("H100", ["H100 PCIe", "H100 SXM", "H100 NVL"], 1),
        ("AMPERE_48", ["RTX A6000", "A40"], 1),
    ],
)
def test_a_pool_or_a_type_is_named_with_a_count(text: str, types: list[str], count: int) -> None:
    asked = choice(text)
    assert ([kind.name for kind in asked.types], asked.count) == (types, count)
    assert len(asked.machine.gpus) == count


def test_a_pool_is_as_large_as_its_smallest_gpu() -> None:
    assert choice("AMPERE_48").gpu == choice("A40").gpu
    assert choice("A40").gpu.memory < choice("A6000").gpu.memory


@pytest.mark.parametrize(
    ("text", "near"), [("ADA24", "ADA_24"), ("A4O", "A40"), ("sesame", "pools are AMPERE_16, ")]
)
def test_an_unknown_gpu_is_refused_with_the_nearest(text: str, near: str) -> None:
    with pytest.raises(StartFailed, match=near):
        choice(text)


@pytest.mark.parametrize("text", ["", "x2", "ADA_24x0", "ADA_24x"])
def test_no_gpu_at_all_is_refused(text: str) -> None:
    with pytest.raises(StartFailed):
        choice(text)


def test_prices_are_json_or_toml(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"ADA_24": 0.69}')
    (tmp_path / "a.toml").write_text("ADA_24 = 0.69\nAMPERE_16 = 1\n")
    assert read_prices(tmp_path / "a.json") == {"ADA_24": 0.69}
    assert read_prices(tmp_path / "a.toml") == {"ADA_24": 0.69, "AMPERE_16": 1}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"ADA_24": "much"}', "ADA_24 is not a pool and its price"),
        ('{"ADA_24": 0}', "ADA_24 is not a pool and its price"),
        ("[1]", "all of it is not a pool and its price"),
        ("{", "neither JSON nor"),
        ('{"ADA_25": 1}', "ADA_25 is no pool; did you mean ADA_24"),
    ],
)
def test_prices_that_are_wrong_are_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "prices").write_text(text)
    with pytest.raises(StartFailed, match=told):
        read_prices(tmp_path / "prices")


def test_prices_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="can't be read"):
        read_prices(tmp_path / "none")


def test_every_type_of_a_pool_offers_less_than_its_nominal_size() -> None:
    for pool in POOLS:
        # The pool's GPUs may be larger, but none is smaller than the driver's part of it.
        assert min(kind.gib for kind in pool.types) < pool.gb
        assert min(kind.gib for kind in pool.types) > 0.9 * pool.gb
