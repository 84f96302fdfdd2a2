from pathlib import Path

import cpuinfo
import pytest

from worker import processor

LINES = "processor\t: 0\nvendor_id\t: Acme\nmodel name\t: Acme 9: two cores\n\nprocessor\t: 1\n"


def test_the_name_is_read_as_the_kernel_has_it(tmp_path: Path) -> None:
    source = tmp_path / "cpuinfo"
    source.write_text(LINES)
    assert processor.read(source) == {"brand_raw": "Acme 9: two cores"}


def test_a_processor_without_a_name_has_none(tmp_path: Path) -> None:
    source = tmp_path / "cpuinfo"
    source.write_text("processor\t: 0\nBogoMIPS\t: 50.00\n")
    assert processor.read(source) == {}


def test_the_library_is_asked_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpuinfo, "get_cpu_info", None)
    processor.name_it_quickly()
    assert cpuinfo.get_cpu_info() == processor.read()
