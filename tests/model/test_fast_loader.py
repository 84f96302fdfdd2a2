"""A fast loader that can't load: the same start goes on with vLLM's own."""

from pathlib import Path

from support.processes.forked import run_forked

SCRIPT = Path(__file__).parent / "scripts" / "fast_loader.py"


def test_vllms_own_loader_is_tried_after_the_one_that_failed(
    worker_environ: dict[str, str], demo_model: Path, tmp_path: Path
) -> None:
    ran = run_forked(worker_environ, SCRIPT, demo_model, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "\nwarm\n" in ran.stderr
    (failed,) = (line for line in ran.stderr.splitlines() if "the loader that was chosen" in line)
    assert "instanttensor" in failed
    assert "LOAD_FORMAT=auto (instanttensor failed)" in ran.stderr
