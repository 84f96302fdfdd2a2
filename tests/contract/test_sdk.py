"""Names of the installed SDK that the job loop replaces or uses, beyond its documented interface.

If one of them has moved, mend ``job_loop/sdk.py``. Until then the SDK's own loop runs the jobs.
How the job loop uses them: platform/test_sdk_protocol.py.
"""

import inspect
import re
import subprocess
import sys
from typing import Any

import pytest
from cpuinfo import cpuinfo
from runpod import serverless
from runpod.serverless.modules import rp_http, rp_job, rp_scale, worker_state
from runpod.serverless.modules.rp_handler import is_generator
from runpod.serverless.utils import rp_debugger
from support.processes.scripted_worker import ENVIRON

from job_loop import sdk
from worker.app import Worker
from worker.command_line import SDK_FLAGS


def test_the_sdk_has_all_names_and_takes_the_workers_handle_for_a_generator() -> None:
    assert sdk.fits()
    assert is_generator(Worker.handle)


def test_the_sdks_flags_are_known_to_the_worker() -> None:
    flags = {flag for action in serverless.parser._actions for flag in action.option_strings}
    assert flags - {"-h", "--help"} <= {*SDK_FLAGS, "--rp_serve_api", "--test_input"}


# What handler.py imports for each way to run, the SDK's test API, and a job of its local mode.
WITHOUT_A_COMMAND_LINE = """
import handler, runpod, sys
from job_loop import JobLoop, sdk
from runpod.serverless.modules import rp_fastapi
from worker.app import Worker
from worker.sending import Sending
assert sdk.fits() and sys.modules["colorama"] is None
rp_fastapi.WorkerAPI({"handler": print})
sys.argv[1:] = ["--test_input", '{"input": {"a": "b"}}']
runpod.serverless.start({"handler": lambda job: job["input"]["a"]})
"""


def test_the_sdk_runs_without_what_its_command_line_needs() -> None:
    """How the two loops run without these packages: platform/test_sdk_served.py."""
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_COMMAND_LINE],
        env=ENVIRON,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "{'output': 'b'}" in ran.stdout


def test_without_one_of_the_names_the_sdks_own_loop_runs_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(rp_job, "JOB_GET_URL")
    monkeypatch.setattr(sdk, "NAMES", (*sdk.NAMES, "runpod.serverless.gone:JobScaler"))
    assert not sdk.fits()
    assert re.search(r"rp_job:JOB_GET_URL.*gone:JobScaler, so its own loop", caplog.text)
    assert "known to work" in caplog.text


def test_the_sdk_names_the_jobs_in_progress_by_their_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    worker_state.JobsProgress().add("of-a-killed-worker")
    jobs: Any = sdk.in_progress()
    assert (sdk.jobs_in_progress(), jobs is worker_state.JobsProgress()) == (0, True)
    jobs.add("job-1")
    assert (sdk.jobs_in_progress(), jobs.get_job_list()) == (1, "job-1")
    jobs.remove("job-1")
    assert sdk.jobs_in_progress() == 0
    # Without its set of jobs it counts as busy.
    monkeypatch.delattr(worker_state, "JobsProgress")
    assert sdk.jobs_in_progress() == 1


def test_the_sdk_asks_for_the_processors_name_alone_when_it_is_imported() -> None:
    """Else ``worker.process.processor`` keeps something from it, or its import takes a second."""
    source = inspect.getsource(rp_debugger)
    assert re.findall(r"cpuinfo\.\S*", source) == ['cpuinfo.get_cpu_info()["brand_raw"]']


# Whether what is replaced still has to be. If not, see whether the worker can do without.


def test_the_sdks_own_loop_sleeps_while_all_slots_are_taken_and_gives_up_posts() -> None:
    waits = r"if jobs_needed <= 0:\s+.*\s+await asyncio\.sleep\(1\)"
    assert re.search(waits, inspect.getsource(rp_scale.JobScaler.get_jobs))
    assert "FibonacciRetry(attempts=3)" in inspect.getsource(rp_http)


def test_the_library_measures_the_processor_for_a_second() -> None:
    assert "sleep(1)" in inspect.getsource(cpuinfo.CPUID.get_raw_hz)
