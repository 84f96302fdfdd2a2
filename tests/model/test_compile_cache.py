"""The compile cache with the real engine, which compiles C++ on a CPU, and what its keys hold."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import ROOT
from support.processes.background import HUNG_S

from worker.engine.machine import Gpu, Machine

SCRIPT = Path(__file__).parent / "scripts" / "compile_cache.py"
# Half of it is for the compiler, with other tests running at the same time.
TIMEOUT_S = 2 * HUNG_S
CPU = Machine(cpu=True)
H100 = Gpu("NVIDIA H100 80GB HBM3", 80 * 2**30)


@dataclass(frozen=True)
class Start:
    """The log of a start, and what it left compiled."""

    log: str
    kernels: set[tuple[str, int]]


def started(model: Path, home: Path, volume: Path) -> Start:
    """Start an engine in a container of its own: nothing lies at home, as on any other worker."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    paths = [str(ROOT / path) for path in ("src", "tests", "builder")]
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": ":".join(paths)}
    done = subprocess.run(
        [sys.executable, SCRIPT, model, volume],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    compiled = (home / ".cache" / "worker-compiled").rglob("*.so")
    kernels = {(path.name, path.stat().st_mtime_ns // 10**9) for path in compiled}
    return Start(done.stderr, kernels)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="on a CPU the engine compiles with g++")
@pytest.mark.timeout(3 * TIMEOUT_S)
def test_the_second_worker_does_not_compile_again(demo_model: Path, tmp_path: Path) -> None:
    volume, home = tmp_path / "volume", tmp_path / "home"
    volume.mkdir()
    first = started(demo_model, home, volume)
    second = started(demo_model, home, volume)
    assert ": unpacked, " not in first.log
    assert first.log.count(": published, ") == 2
    assert second.log.count(": unpacked, ") == 2
    assert "publish" not in second.log
    # Names are hashes of what is compiled; a kernel that was compiled again is younger.
    assert first.kernels
    assert second.kernels == first.kernels


class Configuration:
    """Stands for vLLM's configuration; a key uses only its hash."""

    def __init__(self, digest: str) -> None:
        self.digest = digest

    def compute_hash(self) -> str:
        return self.digest


def key(*hashes: str, on: Machine = CPU) -> str:
    from worker.engine import compile_key  # noqa: PLC0415 - imports vLLM, which takes seconds

    return compile_key.key_of_engines([Configuration(one) for one in hashes], on)


def test_a_key_can_be_read_and_is_a_files_name() -> None:
    vllm_is, torch_is, gpus, digest = key("a", on=Machine(cpu=False, gpus=(H100, H100))).split("_")
    assert vllm_is.startswith("vllm-0.")
    assert torch_is.startswith("torch-2.")
    assert gpus == "2x-NVIDIA-H100-80GB-HBM3"
    assert len(digest) == 16


def test_a_key_is_the_same_for_the_same() -> None:
    assert key("a") == key("a")


def test_a_key_is_another_for_another_configuration_machine_or_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, two = (Machine(cpu=False, gpus=(H100,) * count) for count in (1, 2))
    keys = [key("a"), key("b"), key("a", "b"), key("b", "a"), key("a", on=one), key("a", on=two)]
    monkeypatch.setenv("VLLM_USE_AOT_COMPILE", "0")
    keys.append(key("a"))
    assert len(set(keys)) == len(keys)


def test_the_path_of_the_cache_is_not_in_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key("a")
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/elsewhere")
    monkeypatch.setenv("VLLM_ENABLE_STARTUP_PLAN", "1")
    assert key("a") == before


def test_kernels_for_a_cpu_are_kept_for_one_that_can_do_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from worker.engine import compile_key  # noqa: PLC0415 - likewise

    cpus = tmp_path / "cpuinfo"
    monkeypatch.setattr(compile_key, "CPUS", cpus)
    keys = []
    for line in ("flags\t\t: fpu avx2", "flags\t\t: fpu avx512f", "Features\t: asimd sve"):
        cpus.write_text(f"processor\t: 0\ncpu MHz\t\t: {len(line)}\n{line}\n")
        keys.append(key("a"))
    assert len(set(keys)) == len(keys)
    cpus.write_text("processor\t: 0\ncpu MHz\t\t: 0\nflags\t\t: fpu avx2\n")
    assert key("a") == keys[0]


def test_models_have_a_key_before_their_configuration_is_read() -> None:
    from worker.engine import compile_key  # noqa: PLC0415 - likewise

    keys = [compile_key.key_of_models(models) for models in (["a"], ["b"], ["a", "b"])]
    assert len(set(keys)) == len(keys)
    assert all(name.startswith("vllm-0.") for name in keys)
