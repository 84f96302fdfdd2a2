"""A volume that is named and can't be used is told before a prefetch writes to it."""

from pathlib import Path

from worker.settings.sources import gather
from worker.start.volume import unreadable_volume

NAME = "org/model"


def test_a_volume_that_was_named_and_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    given = gather({"MODEL_NAME": NAME, "BASE_PATH": str(tmp_path / "nope")})
    (mistake,) = unreadable_volume(given)
    assert (mistake.name, mistake.value) == ("BASE_PATH", str(tmp_path / "nope"))
    assert "in a pod the volume is at /workspace" in mistake.advice
    assert [*unreadable_volume(gather({"MODEL_NAME": NAME, "BASE_PATH": str(tmp_path)}))] == []
    assert [*unreadable_volume(gather({"MODEL_NAME": NAME}))] == []


def test_a_volume_that_cannot_be_read_is_a_mistake_with_its_reason(tmp_path: Path) -> None:
    loop, file = tmp_path / "loop", tmp_path / "file"
    loop.symlink_to(loop)
    file.touch()
    for place, reason in ((loop, "symbolic links"), (file, "Not a directory")):
        (mistake,) = unreadable_volume(gather({"MODEL_NAME": NAME, "BASE_PATH": str(place)}))
        assert reason in mistake.advice
