"""Ids of objects, the volume's id in them, and objects of other volumes."""

import re
from pathlib import Path

import pytest
from support.engine.scripted import settings

from worker.errors import InvalidInput, NoSuchObject, OnOtherVolume
from worker.volume import Volume, ids
from worker.volume.adapters import adapter_file_paths
from worker.volume.ids import UNKNOWN_LOCATION, VolumeLocation

HERE, THERE = "euvolume01", "usvolume02"
LOCATION = VolumeLocation(HERE, "EU-RO-1")
A = "a" * 24


def location_from(**environ: str) -> VolumeLocation:
    return VolumeLocation.from_settings(settings(**environ))


def test_every_new_id_is_unique_and_has_24_letters_and_digits() -> None:
    new_ids = {ids.new_id("file-") for _ in range(1000)}
    assert len(new_ids) == 1000
    assert all(re.fullmatch(r"file-[a-z0-9]{24}", id) and ids.is_id("file-", id) for id in new_ids)


def test_a_derived_id_depends_only_on_its_origin() -> None:
    derived = ids.derive_id("batch_", "job-1", "out")
    assert derived == ids.derive_id("batch_", "job-1", "out")
    others: list[list[str]] = [["job-1out"], ["job-1"], ["out"], [], ["ä/\ud83d", ""]]
    new_ids = {derived, *(ids.derive_id("batch_", *origin) for origin in others)}
    assert len(new_ids) == 6
    assert all(ids.is_id("batch_", id) for id in new_ids)


@pytest.mark.parametrize(
    "text",
    [
        *("", "file-", f"file-{A[1:]}", f"file-{A}a", f"batch_{A}", f"file-{A.upper()}"),
        *("file-" + "/" * 24, f"file-../{A[3:]}", f"file-{A}\n", "file-" + "٣" * 24, f" file-{A}"),
    ],
)
def test_a_string_of_another_form_is_not_an_id(text: str) -> None:
    assert not ids.is_id("file-", text)


def test_an_id_ends_with_the_id_of_the_volume_and_derived_ids_are_stable() -> None:
    location = location_from(RUNPOD_VOLUME_ID=HERE)
    new_id, derived = location.new_id("file-"), location.derive_id("batch_", "job-1")
    assert derived == VolumeLocation(HERE, "another").derive_id("batch_", "job-1")
    assert derived == f"{ids.derive_id('batch_', 'job-1')}.vol-{HERE}"
    for prefix, id in (("file-", new_id), ("batch_", derived)):
        assert ids.is_id(prefix, id)
        assert ids.is_any_id(id)
        assert ids.split_volume_id(id)[1] == HERE


@pytest.mark.parametrize(
    "volume_id",
    ["", "short", "x" * 21, "a/b/c/d", "vol-0123", "../../..", "ünicode1", "a" * 9 + "\n"],
)
def test_ids_carry_only_valid_ids_of_volumes(volume_id: str) -> None:
    location = VolumeLocation.from_settings(
        settings().model_copy(update={"runpod_volume_id": volume_id})
    )
    assert location.id is None
    assert ids.is_id("file-", location.new_id("file-"))
    assert "." not in location.new_id("file-")
    location.check_name("file", f"file-{A}.vol-{THERE}")


@pytest.mark.parametrize(
    "text",
    [
        *(f"file-{A}.vol-", f"file-{A}.vol-a/b/c/d", f"file-{A}.vol-{HERE}\n", f"file-{A}.{HERE}"),
        *(f"file-{A}.vol-{HERE}.vol-{HERE}", f"file-{A}vol-{HERE}", f"file-.vol-{HERE}"),
    ],
)
def test_an_id_has_only_one_volume_in_its_own_form(text: str) -> None:
    assert not ids.is_id("file-", text)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        (f"demo.a.vol-{HERE}", ("demo.a", HERE)),
        (f"demo.vol-{THERE}.vol-{HERE}", (f"demo.vol-{THERE}", HERE)),
        *(
            (name, (name, None))
            for name in ("demo", "demo.vol-1", f".vol-{HERE}", f"a b.vol-{HERE}")
        ),
    ],
)
def test_the_volume_of_a_name_is_at_its_end(name: str, split: tuple[str, str | None]) -> None:
    assert ids.split_volume_id(name) == split


def test_numbered_parts_carry_the_volume_of_their_object() -> None:
    assert ids.number_id("ftevent-", f"ftjob-{A}", 3) == f"ftevent-{A}-00000003"
    numbered = ids.number_id("ftckpt-", f"ftjob-{A}.vol-{HERE}", 12)
    assert numbered == f"ftckpt-{A}-00000012.vol-{HERE}"
    assert ids.is_any_id(numbered)


def test_the_error_names_both_volumes_and_the_data_center() -> None:
    with pytest.raises(OnOtherVolume) as raised:
        LOCATION.check_name("file", f"file-{A}.vol-{THERE}", "id")
    assert raised.value.body()["error"] == {
        "message": f"The file file-{A}.vol-{THERE} is on the network volume {THERE}, and this "
        f"worker is on {HERE} (data center EU-RO-1). "
        "Send the request again: a worker on that volume can answer.",
        "type": "ServiceUnavailableError",
        "param": "id",
        "code": 503,
        "retryable": True,
        "request_id": None,
    }


def test_only_names_of_other_volumes_are_elsewhere() -> None:
    for name in ("demo", f"file-{A}", f"file-{A}.vol-{HERE}", f"../x.vol-{THERE}"):
        LOCATION.check_name("file", name)
    UNKNOWN_LOCATION.check_name("file", f"file-{A}.vol-{THERE}")


@pytest.mark.parametrize("center", ["EU-RO-1", "EU RO\n1", "x" * 40])
def test_a_data_center_is_named_if_it_is_a_word(center: str) -> None:
    location = location_from(RUNPOD_VOLUME_ID=HERE, RUNPOD_DC_ID=center)
    expected = " (data center EU-RO-1)" if center == "EU-RO-1" else ""
    assert str(location) == f"{HERE}{expected}"


def test_a_path_in_the_bucket_of_another_volume_is_elsewhere(tmp_path: Path) -> None:
    environ = {"FILES_PATH": str(tmp_path), "RUNPOD_VOLUME_ID": HERE}
    volume = Volume.from_settings(settings(**environ))
    assert volume.input_path(f"s3://{HERE}/inbox/a") == tmp_path / "inbox" / "a"
    for resolve in (volume.input_path, volume.output_path):
        with pytest.raises(OnOtherVolume, match=f"The path s3://{THERE}/out/a is on the network"):
            resolve(f"s3://{THERE}/out/a")
        for bucket in ("mybucket", "my-input-path"):
            with pytest.raises(InvalidInput, match="no other bucket"):
                resolve(f"s3://{bucket}/out/a")


def test_the_files_of_an_adapter_on_another_volume_are_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(OnOtherVolume, match=r"The adapter a\.vol-usvolume02 is on"):
        adapter_file_paths(tmp_path, f"a.vol-{THERE}", LOCATION)
    with pytest.raises(NoSuchObject):
        adapter_file_paths(tmp_path, f"a.vol-{HERE}", LOCATION)
