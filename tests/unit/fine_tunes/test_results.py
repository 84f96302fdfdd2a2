"""The files that callers get of a fine-tune: a table and a plot of its metrics, and its adapter."""

import csv
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.fine_tunes import eval_loss, loss, tell

from worker.fine_tunes import plot, results
from worker.fine_tunes.request import Publishing
from worker.fine_tunes.state import FineTune
from worker.fine_tunes.store import FineTunes

SVG = "{http://www.w3.org/2000/svg}"
NAMES = ["step_metrics.csv", "losses.svg"]


@pytest.fixture
def fine_tune(fine_tune: FineTune) -> FineTune:
    tell(fine_tune, [loss(5, 3), loss(10, 2), eval_loss(10, 2.5), loss(15, 1.5)])
    return fine_tune


def published(fine_tune: FineTune, size: int) -> Path:
    """Decide that the adapter of an attempt is published; return its directory."""
    place = fine_tune.directory / "attempts" / "000001.aa" / "result"
    place.mkdir(parents=True)
    (place / "adapter_config.json").write_text("{}")
    (place / "adapter_model.safetensors").write_bytes(bytes(size))
    fine_tune.decide(Publishing(name="demo.new", attempt="000001.aa"))
    return place


def names_of(fine_tunes: FineTunes, fine_tune: FineTune) -> list[str]:
    written = results.write(fine_tunes.files, fine_tune)
    return [fine_tunes.files.get(id).filename for id in written]


def test_the_table_and_the_plot_are_written_once(
    fine_tunes: FineTunes, fine_tune: FineTune
) -> None:
    first = results.write(fine_tunes.files, fine_tune)
    files = [fine_tunes.files.get(id) for id in first]
    assert [file.filename for file in files] == NAMES
    assert {file.purpose for file in files} == {"fine-tune-results"}
    table, picture = (fine_tunes.files.content(file).read_text() for file in files)
    assert table.startswith("step,train_loss,valid_loss,")
    assert ElementTree.fromstring(picture).tag == f"{SVG}svg"
    tell(fine_tune, [loss(20, 1)], "000002.bb", resumed_at=15)
    assert results.write(fine_tunes.files, fine_tune) == first


def test_the_adapters_files_come_with_them(fine_tunes: FineTunes, fine_tune: FineTune) -> None:
    place = published(fine_tune, 700_000)
    written = results.write(fine_tunes.files, fine_tune)
    files = [fine_tunes.files.get(id) for id in written][2:]
    assert [file.filename for file in files] == ["adapter_config.json", "adapter_model.safetensors"]
    for file in files:
        content = fine_tunes.files.content(file).read_bytes()
        assert content == (place / file.filename).read_bytes()
    assert results.write(fine_tunes.files, fine_tune) == written


def test_an_adapter_too_large_for_a_file_is_left_out(
    fine_tunes: FineTunes, fine_tune: FineTune
) -> None:
    published(fine_tune, 1_000_001)
    assert names_of(fine_tunes, fine_tune) == NAMES


def test_the_table_has_a_row_for_each_step_and_nothing_where_nothing_was_told() -> None:
    steps = {
        5: {"train_loss": 3.0, "learning_rate": 2e-3},
        10: {"valid_loss": 2.5, "eval_runtime": 1.0},
    }
    assert list(csv.reader(results.table(steps).splitlines())) == [
        ["step", "train_loss", "valid_loss", "learning_rate"],
        ["5", "3.0", "", "0.002"],
        ["10", "", "2.5", ""],
    ]
    assert results.table({}) == "step,train_loss,valid_loss\n"


def texts(picture: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def test_a_plot_has_ticks_and_a_line_for_each_loss_and_any_title_is_only_text() -> None:
    title = '</text><script>alert("&")</script>'
    picture = plot.svg(title, {"train": {1: 4.0, 10: 1.0}, "valid": {10: 2.0}})
    assert {title, "step", "loss", "train", "valid", "0", "2", "10", "1", "4"} <= {*texts(picture)}
    root = ElementTree.fromstring(picture)
    (line,) = root.iter(f"{SVG}polyline")
    points = [tuple(map(float, one.split(","))) for one in (line.get("points") or "").split()]
    (left, high), (right, low) = points
    assert plot.LEFT <= left < right <= plot.WIDTH - plot.RIGHT
    # Down is up in a picture.
    assert plot.TOP <= high < low <= plot.HEIGHT - plot.BOTTOM
    assert len(list(root.iter(f"{SVG}circle"))) == 3


@pytest.mark.parametrize(
    ("points", "ticks"),
    [
        ({1: 30, 2: 60}, ["1", "2"]),
        ({1: 0.1, 2: 0.7}, ["0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7"]),
        ({}, ["0", "1"]),
        ({7: 2.5}, ["6", "8"]),
        ({1: 1e-9, 2: 1e-9}, ["1", "2"]),
        ({1: 1e12, 2: -1e12}, ["1e+12", "-1e+12"]),
        ({step: 1.0 / step for step in range(1, 5000)}, ["0", "1", "5000"]),
    ],
)
def test_every_course_of_a_loss_has_a_few_round_ticks_and_none_between_two_steps(
    points: dict[int, float], ticks: list[str]
) -> None:
    found = texts(plot.svg("t", {"train": points}))
    assert {*ticks} <= {*found}
    assert len(found) < 40
    assert "nan" not in found
    assert "1.5" not in found
