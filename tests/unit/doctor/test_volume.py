"""The doctor's finding on the network volume of the machine."""

import pytest
from support.engine.scripted import settings

from worker.doctor import report_volume
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
