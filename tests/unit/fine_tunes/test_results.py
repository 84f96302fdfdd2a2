"""The table and the plot of a fine-tune's metrics."""

import csv
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.engine.scripted import settings
from support.told import created, eval_loss, loss, tell

from worker.fine_tunes import plot, results
from worker.fine_tunes.request import Publishing
from worker.fine_tunes.state import FineTune
from worker.fine_tunes.store import FineTunes

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def fine_tunes(tmp_path: Path) -> FineTunes:
    return FineTunes.of(settings(FILES_PATH=str(tmp_path)))


@pytest.fixture
def fine_tune(fine_tunes: FineTunes) -> FineTune:
    found = created(fine_tunes)
    tell(found, [loss(5, 3), loss(10, 2), eval_loss(10, 2.5), loss(15, 1.5)])
    return found


def test_both_are_files_that_callers_can_download(
    fine_tunes: FineTunes, fine_tune: FineTune
) -> None:
    files = [fine_tunes.files.get(id) for id in results.write(fine_tunes.files, fine_tune)]
    assert [file.filename for file in files] == ["step_metrics.csv", "losses.svg"]
    assert {file.purpose for file in files} == {"fine-tune-results"}
    table, picture = (fine_tunes.files.content(file).read_text() for file in files)
    assert table.startswith("step,train_loss,valid_loss,")
    assert ElementTree.fromstring(picture).tag == f"{SVG}svg"


def published(fine_tune: FineTune) -> Path:
    """Decide that the adapter of an attempt is published; return its directory."""
    place = fine_tune.directory / "attempts" / "000001.aa" / "result"
    place.mkdir(parents=True)
    (place / "adapter_config.json").write_text("{}")
    (place / "adapter_model.safetensors").write_bytes(b"weights" * 300_000)
    fine_tune.decide(Publishing(name="demo.new", attempt="000001.aa"))
    return place


def test_so_are_the_adapter_s_files(fine_tunes: FineTunes, fine_tune: FineTune) -> None:
    place = published(fine_tune)
    written = results.write(fine_tunes.files, fine_tune)
    files = [fine_tunes.files.get(id) for id in written][2:]
    assert [file.filename for file in files] == ["adapter_config.json", "adapter_model.safetensors"]
    for file in files:
        content = fine_tunes.files.content(file).read_bytes()
        assert content == (place / file.filename).read_bytes()
    assert results.write(fine_tunes.files, fine_tune) == written


def test_an_adapter_that_is_larger_than_a_file_may_be_is_left_out(tmp_path: Path) -> None:
    fine_tunes = FineTunes.of(settings(FILES_PATH=str(tmp_path), FILES_MAX_MB="1"))
    fine_tune = created(fine_tunes)
    published(fine_tune)
    assert len(results.write(fine_tunes.files, fine_tune)) == 2


def test_they_are_written_once(fine_tunes: FineTunes, fine_tune: FineTune) -> None:
    first = results.write(fine_tunes.files, fine_tune)
    tell(fine_tune, [loss(20, 1)], "000002.bb", resumed_at=15)
    assert results.write(fine_tunes.files, fine_tune) == first
    assert len(fine_tunes.files.list(purpose="fine-tune-results").data) == 2


def test_the_table_has_a_row_for_each_step_and_nothing_where_nothing_was_told() -> None:
    steps = {
        5: {"train_loss": 3.0, "learning_rate": 2e-3},
        10: {"valid_loss": 2.5, "eval_runtime": 1.0},
    }
    rows = list(csv.reader(results.table(steps).splitlines()))
    assert rows == [
        ["step", "train_loss", "valid_loss", "learning_rate"],
        ["5", "3.0", "", "0.002"],
        ["10", "", "2.5", ""],
    ]
    assert results.table({}) == "step,train_loss,valid_loss\n"


def texts(picture: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def test_a_plot_has_a_title_ticks_and_a_line_for_each_loss() -> None:
    picture = plot.svg("Losses", {"train": {1: 4.0, 10: 1.0}, "valid": {10: 2.0}})
    found = texts(picture)
    assert {"Losses", "step", "loss", "train", "valid"} <= set(found)
    assert {"0", "2", "10", "1", "4"} <= set(found)
    root = ElementTree.fromstring(picture)
    (line,) = root.iter(f"{SVG}polyline")
    points = [tuple(map(float, one.split(","))) for one in (line.get("points") or "").split()]
    (left, high), (right, low) = points
    assert plot.LEFT <= left < right <= plot.WIDTH - plot.RIGHT
    # Down is up in a picture.
    assert plot.TOP <= high < low <= plot.HEIGHT - plot.BOTTOM
    assert len(list(root.iter(f"{SVG}circle"))) == 3


def test_any_title_is_only_text() -> None:
    title = '</text><script>alert("&")</script>'
    assert title in texts(plot.svg(title, {}))


@pytest.mark.parametrize(
    "points",
    [
        {},
        {1: 0.0},
        {7: 2.5},
        {1: 1e-9, 2: 1e-9},
        {1: 1e12, 2: -1e12},
        {step: 1.0 / step for step in range(1, 5000)},
    ],
)
def test_every_course_of_a_loss_can_be_plotted(points: dict[int, float]) -> None:
    picture = plot.svg("t", {"train": points})
    labels = texts(picture)
    assert len(labels) < 40
    assert "nan" not in picture


def test_there_is_no_tick_between_two_steps() -> None:
    steps = [one for one in texts(plot.svg("t", {"train": {1: 30, 2: 60}})) if "." in one]
    assert not steps


def test_ticks_are_round_numbers() -> None:
    found = texts(plot.svg("t", {"train": {1: 0.1, 2: 0.7}}))
    assert {"0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7"} <= set(found)
