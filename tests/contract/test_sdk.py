"""Tests of undocumented names of the installed SDK that the job loop replaces or uses.

If one of them has moved, adapt ``job_loop/sdk.py``. Until then the SDK's own loop runs the jobs.
platform/test_sdk_protocol.py tests the job loop with these names.
"""

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cpuinfo import cpuinfo
from runpod import serverless
from runpod.serverless.modules import rp_http, rp_job, rp_scale, worker_state
from runpod.serverless.modules.rp_handler import is_generator
from runpod.serverless.utils import rp_debugger
from support import ROOT
from support.processes.scripted_worker import ENVIRON, full_gpu_environ

from emulator import Emulator
from job_loop import sdk
from worker.app import Worker
from worker.command_line import SDK_FLAGS


def test_the_sdk_has_all_required_names_and_treats_the_handler_as_a_generator() -> None:
    assert sdk.is_compatible()
    assert is_generator(Worker.handle)


def test_the_worker_knows_all_flags_of_the_sdk() -> None:
    flags = {flag for action in serverless.parser._actions for flag in action.option_strings}
    assert flags - {"-h", "--help"} <= {*SDK_FLAGS, "--rp_serve_api", "--test_input"}


def run_code(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run Python code with the variables of a worker without an engine, as in the image."""
    command = [sys.executable, "-c", code]
    environ = {**ENVIRON, **environ}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


# The imports while the engine starts, those of run_sdk, the SDK's test API, and a job in its local
# mode.
IMPORTS_AND_JOB = """
import handler, importlib, sys
for name in handler.SDK_MODULES:
    importlib.import_module(name)
loaded = {*sys.modules}
from job_loop import JobLoop, sdk
from runpod import serverless
assert sdk.is_compatible() and sys.modules["colorama"] is None
assert {*sys.modules} == loaded, {*sys.modules} - loaded
from runpod.serverless.modules import rp_fastapi
from worker.job_sender import JobSender
rp_fastapi.WorkerAPI({"handler": print})
sys.argv[1:] = ["--test_input", '{"input": {"a": "b"}}']
serverless.start({"handler": lambda job: job["input"]["a"]})
"""


@pytest.mark.slow
def test_the_sdk_loads_while_the_engine_starts_without_packages_of_its_command_line() -> None:
    """platform/test_sdk_emulator.py runs both loops without these packages."""
    ran = run_code(IMPORTS_AND_JOB)
    assert ran.returncode == 0, ran.stderr
    assert "{'output': 'b'}" in ran.stdout


@pytest.mark.slow
def test_the_build_of_the_image_fails_without_a_package_of_the_sdk() -> None:
    (code,) = re.findall(r'python -c "(import .*)"', (ROOT / "Dockerfile").read_text())
    assert run_code(code).returncode == 0
    assert "aiohttp_retry" in run_code(code, NOT_INSTALLED="aiohttp_retry").stderr


# Starts the SDK up to the job loop, with the variables that the worker exports.
START = """
from types import SimpleNamespace
from worker.settings.environment import LIBRARY_DEFAULTS, set_unset_variables
set_unset_variables(LIBRARY_DEFAULTS)
from job_loop import sdk
from runpod import serverless
sdk.replace_scaler(SimpleNamespace(start=lambda: print("takes jobs")))
serverless.start({"handler": print})
"""


@pytest.mark.slow
@pytest.mark.parametrize(("operators_value", "takes_jobs"), [("", True), ("false", False)])
def test_the_sdk_checks_no_gpu_unless_the_operator_wants_it(
    tmp_path: Path, operators_value: str, takes_jobs: bool
) -> None:
    environ = {**Emulator().worker_environ(), **full_gpu_environ(tmp_path)}
    # Nothing answers pings.
    del environ["RUNPOD_WEBHOOK_PING"]
    started = run_code(START, **environ, RUNPOD_SKIP_GPU_CHECK=operators_value)
    assert (started.returncode == 0, "takes jobs" in started.stdout) == (takes_jobs, takes_jobs)
    assert ("GPU 0 memory allocation failed" in started.stdout) != takes_jobs


def test_a_missing_name_is_logged_and_leaves_the_jobs_to_the_loop_of_the_sdk(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(rp_job, "JOB_GET_URL")
    monkeypatch.setattr(
        sdk, "REQUIRED_NAMES", (*sdk.REQUIRED_NAMES, "runpod.serverless.gone:JobScaler")
    )
    assert not sdk.is_compatible()
    assert re.search(r"rp_job:JOB_GET_URL.*gone:JobScaler, so its own loop", caplog.text)
    assert "known to work" in caplog.text


def test_jobs_in_progress_are_counted_and_listed_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    worker_state.JobsProgress().add("of-a-killed-worker")
    jobs: Any = sdk.reset_jobs_in_progress()
    assert (sdk.count_jobs_in_progress(), jobs is worker_state.JobsProgress()) == (0, True)
    jobs.add("job-1")
    assert (sdk.count_jobs_in_progress(), jobs.get_job_list()) == (1, "job-1")
    jobs.remove("job-1")
    assert sdk.count_jobs_in_progress() == 0
    # Without the SDK's set of jobs, the worker counts as busy.
    monkeypatch.delattr(worker_state, "JobsProgress")
    assert sdk.count_jobs_in_progress() == 1


def test_the_sdk_reads_only_the_name_of_the_processor() -> None:
    """If this fails, ``worker.process.lifetime`` withholds data, or the import takes a second."""
    (read,) = re.findall(r"cpuinfo\.\S*", inspect.getsource(rp_debugger))
    # Version 2.0 has the second form, and reads the name only for a job's debugger.
    forms = ('cpuinfo.get_cpu_info()["brand_raw"]', 'cpuinfo.get_cpu_info().get("brand_raw",')
    assert read in forms


# If one of these tests fails, a replacement may be unnecessary: check whether the worker works
# without it.


def test_the_loop_of_the_sdk_still_sleeps_while_all_slots_are_busy_and_gives_up_posts() -> None:
    waits = r"if jobs_needed <= 0:\s+.*\s+await asyncio\.sleep\(1\)"
    assert re.search(waits, inspect.getsource(rp_scale.JobScaler.get_jobs))
    assert "FibonacciRetry(attempts=3)" in inspect.getsource(rp_http)


def test_the_cpuinfo_library_still_measures_the_processor_for_a_second() -> None:
    assert "sleep(1)" in inspect.getsource(cpuinfo.CPUID.get_raw_hz)
