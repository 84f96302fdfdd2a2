"""The strategy by which vLLM reads weights, by the disk that they are on."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.contract


@pytest.mark.parametrize(("kind", "expected"), [("fuse.mfs", "prefetch"), ("ext4", None)])
def test_weights_on_a_network_disk_are_read_ahead(
    demo_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    expected: str | None,
) -> None:
    from worker.engine.configuring import configure  # noqa: PLC0415 - imports vLLM, which takes seconds
    from worker.engine.options import Options, read_ahead  # noqa: PLC0415 - likewise

    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/root / ext4 rw 0 0\nvolume {demo_model.resolve()} {kind} rw 0 0\n")
    monkeypatch.setattr(read_ahead, "MOUNTS", mounts)
    arguments = Options().parse({"MODEL": str(demo_model)})
    changed, config = configure(arguments)
    assert config.load_config.safetensors_load_strategy == expected
    defaults = [default.name for default in changed.defaults]
    assert ("SAFETENSORS_LOAD_STRATEGY" in defaults) is (expected is not None)
