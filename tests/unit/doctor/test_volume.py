"""The doctor's findings on the network volume of the machine, and on long work on it."""

from pathlib import Path

import pytest
from support.engine.scripted import settings

from worker.doctor import missing_key_note, report_volume
from worker.doctor.findings import Level


def test_a_known_volume_is_reported_with_the_meaning_of_several() -> None:
    assert list(report_volume(settings())) == []
    (finding,) = report_volume(settings(RUNPOD_VOLUME_ID="euvolume01", RUNPOD_DC_ID="EU-RO-1"))
    assert (finding.level, finding.topic) == (Level.OK, "volume")
    assert finding.text.startswith("euvolume01 (data center EU-RO-1): if the endpoint has further")


@pytest.mark.parametrize("id", ["vol-1", "a/b/c/d/e"])
def test_an_id_that_names_cannot_carry_is_a_warning(id: str) -> None:
    (finding,) = report_volume(settings(RUNPOD_VOLUME_ID=id))
    assert (finding.level, finding.change != "") == (Level.WARN, True)


QUEUE = "RUNPOD_WEBHOOK_GET_JOB"


@pytest.mark.parametrize(
    ("queue", "environ", "noted"),
    [
        (True, {"FILES_PATH": "missing"}, True),
        (True, {"BASE_PATH": "."}, True),
        (True, {"BASE_PATH": "missing"}, False),
        (True, {"BASE_PATH": ".", "BATCH_API_KEY": "key"}, False),
        # On a laptop, a directory at BASE_PATH may have models only.
        (False, {"BASE_PATH": "."}, False),
        (False, {"FILES_PATH": "missing"}, True),
        (False, {"FILES_PATH": "missing", "BATCH_API_KEY": "key"}, False),
    ],
    ids=str,
)
def test_a_volume_without_a_key_is_noted_where_it_matters(
    *,
    queue: bool,
    environ: dict[str, str],
    noted: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if queue:
        monkeypatch.setenv(QUEUE, "https://platform/job-take")
    paths = {
        name: str(tmp_path / value) if name.endswith("PATH") else value
        for name, value in environ.items()
    }
    found = list(report_volume(settings(**paths)))
    assert [(finding.level, finding.topic) for finding in found] == [
        (Level.OK, "long work")
    ] * noted
    assert [finding.text for finding in found] == [missing_key_note(settings(**paths))] * noted
    assert all("set BATCH_API_KEY" in finding.text for finding in found)
