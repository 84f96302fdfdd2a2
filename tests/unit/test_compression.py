"""Compressed files are recognised by their first bytes, and text is not taken for one."""

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.compression import find_compression


def zip_file(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.jsonl", content)
    return file.getvalue()


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zip": zip_file,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    # No module of Python 3.11 writes these formats: the first bytes of a frame.
    "zstd": lambda content: b"\x28\xb5\x2f\xfd\x04\x00" + content,
    "lz4": lambda content: b"\x04\x22\x4d\x18\x64\x40" + content,
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compression") / "file"


@pytest.mark.parametrize("name", COMPRESS)
@given(st.binary(min_size=1))
def test_a_compressed_file_is_recognised(path: Path, name: str, content: bytes) -> None:
    path.write_bytes(COMPRESS[name](content))
    assert find_compression(path) == name


TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs"]))


@given(TEXTS | st.sampled_from(["", "BZh9", "BZh91AY", "PK", "{", "\ufeffprompt,response"]))
def test_text_is_not_compressed(path: Path, content: str) -> None:
    path.write_bytes(content.encode())
    assert find_compression(path) is None
