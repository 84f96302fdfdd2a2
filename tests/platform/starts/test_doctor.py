"""`handler.py --check` as an operator runs it: a process of its own, and the hub on loopback.

For the findings about environments see tests/settings/test_doctor.py.
"""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from support.hub.server import hub
from support.processes.commands import HANDLER, HOME, SCRIPT, WORKER, Ran, run
from support.tables.models import RECORDED

FINDING = re.compile(r"(?P<level>ok|\?|warn|FAIL) +(?P<topic>\S+(?: \S+)*)  ")
# A vLLM that is made for GPUs, where there is none.
WITHOUT_DEVICE = """
import sys
import vllm.platforms
from vllm.platforms.interface import UnspecifiedPlatform
vllm.platforms._current_platform = UnspecifiedPlatform()
sys.path.insert(0, "src")
from worker import doctor
sys.exit(doctor.main())
"""
CHECK = (*HANDLER, "--check")
# Tensors of a file of weights: a header of about 2 MB.
TENSORS = 20_000
# Bytes of a file that the hub's library asks for before it knows how long the header is.
FIRST = 100_001

pytestmark = pytest.mark.usefixtures("demo_model")


def levels(ran: Ran) -> dict[str, str]:
    """Return the level of each topic; of several findings on one, the last."""
    assert "Traceback" not in ran.stdout + ran.stderr
    found = (FINDING.match(line) for line in ran.stdout.splitlines())
    return {match["topic"]: match["level"] for match in found if match}


def words(ran: Ran) -> str:
    """Return the whole output, without its line breaks."""
    return " ".join(ran.stdout.split())


# A fork, whose cache of the hub is the machine's: a model on a disk needs none.
def test_the_demo_model_would_start() -> None:
    report = run(WORKER, SCRIPT, "--check")
    assert report.returncode == 0, report.stderr
    assert levels(report) == dict.fromkeys(
        ["settings", "model", "architecture", "context", "memory", "cache", "start-up time"], "ok"
    )
    assert ".models/demo is a directory" in report.stdout
    assert "tokens (2048 bytes each) in 1.0 GiB (VLLM_CPU_KVCACHE_SPACE=1)" in words(report)
    assert report.stdout.endswith("\nThe worker would start.\n")


# The others import vLLM.
@pytest.mark.slow
def test_make_doctor_is_its_command() -> None:
    report = run(HOME, "make", "-s", "doctor")
    assert (report.returncode, set(levels(report).values())) == (0, {"ok"})


@pytest.mark.slow
def test_an_invalid_address_of_the_hub_is_a_finding() -> None:
    report = run({**WORKER, "HF_ENDPOINT": "http://[bad"}, *CHECK)
    assert (report.returncode, levels(report)) == (1, {"vLLM": "FAIL", "hub": "FAIL"})
    assert "HF_ENDPOINT" in words(report)


@pytest.mark.slow
def test_without_a_gpu_a_vllm_for_gpus_is_reported() -> None:
    report = run(WORKER, sys.executable, "-c", WITHOUT_DEVICE)
    assert (report.returncode, levels(report)) == (1, {"vLLM": "FAIL", "model": "ok"})
    assert "vLLM finds no GPU on this machine" in words(report)


# Prices, pools and other models: unit/doctor/gpus.
def test_a_gpu_is_judged_without_one(demo_model: Path, tmp_path: Path) -> None:
    folder = RECORDED["GQA"].write(tmp_path / "model")
    for file in demo_model.glob("tokenizer*"):
        shutil.copy(file, folder)
    one = run({**HOME, "MODEL_NAME": str(folder)}, SCRIPT, "--check", "--gpu", "A4000")
    assert one.returncode == 1
    assert "RTX A4000: weights 15.0 GiB" in one.stdout
    assert one.stdout.endswith("\nThe worker would not start: 1 failure, 1 unknown.\n")
    assert "Traceback" not in one.stderr


def write_shard(path: Path, number: int) -> int:
    """Write a file of weights whose data is a hole; return the bytes before it."""
    each = 2 * 1024
    entries = {
        f"model.layers.{number}.mlp.experts.{place}.down_proj.weight": {
            "dtype": "BF16",
            "shape": [each // 2],
            "data_offsets": [place * each, (place + 1) * each],
        }
        for place in range(TENSORS)
    }
    header = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + TENSORS * each)
    return 8 + len(header)


@pytest.mark.slow
def test_no_weights_are_downloaded_for_the_verdict(demo_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    ignored = shutil.ignore_patterns("model.safetensors", "recipe.sha256")
    shutil.copytree(demo_model, folder, ignore=ignored)
    names = [f"model-{number}-of-00002.safetensors" for number in ("00001", "00002")]
    headers = {name: write_shard(folder / name, number) for number, name in enumerate(names)}
    index = {"metadata": {}, "weight_map": {f"of {name}": name for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with hub() as running:
        running.add("org/large", folder)
        environ = {**HOME, "HF_ENDPOINT": running.endpoint, "HF_HOME": str(tmp_path / "home")}
        environ |= {"MODEL_NAME": "org/large", "BASE_PATH": str(tmp_path / "volume")}
        checked = run(environ, *CHECK, "--gpu", "ADA_24")
        fetched = {sent.path: running.transferred("org/large", sent.path) for sent in running.sent}
    assert checked.returncode == 0, checked.stdout + checked.stderr
    # All of both headers were read: 40 000 tensors of 1024 elements of 16 bits.
    assert "weights 78.1 MiB" in words(checked)
    assert fetched.keys() >= headers.keys()
    for path, size in fetched.items():
        assert path in headers or path.endswith(".json"), path
        if path in headers:
            assert size <= headers[path] + FIRST
            assert size < (folder / path).stat().st_size / 4
    for place in ("volume", "home"):
        assert not [*(tmp_path / place).rglob("*.safetensors")]
