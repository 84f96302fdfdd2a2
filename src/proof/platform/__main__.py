"""Proves the worker on RunPod Serverless, and compares the platform with the emulator.

``python -m proof.platform --image me/llm-worker:dev`` needs an account's key and costs money.
"""

import argparse
import platform
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import llm_worker_client
from llm_worker_client import account
from llm_worker_client.deploy.api import API_URL, Api
from llm_worker_client.deploy.command import AccountCommand, exit_signals_interrupt
from llm_worker_client.deploy.errors import DeployError, PlanError
from llm_worker_client.deploy.settings import LISTING
from llm_worker_client.terminal import INTERRUPTED, USAGE_ERROR
from proof.platform.endpoints import (
    ProofEndpoints,
    delete_endpoints,
    describe_endpoints,
    find_endpoints,
    name_unidentified,
)
from proof.platform.plan import DEFAULT_LIMIT_MINUTES, DEFAULT_MODEL, FAMILY, ProofPlan
from proof.platform.report import make_report, write_report
from proof.platform.run import PlatformRun
from proof.platform.steps import STEPS


class ProofCommand(AccountCommand):
    """One call of the command."""

    def run(self) -> int:
        """Run the command and return its exit status: 1 if anything is left or has no result."""
        with self.open_api() as api:
            left = self._delete_leftovers(api)
            if self.options.delete_leftovers:
                return 1 if left else 0
            return max(self._prove(api), 1 if left else 0)

    def _prove(self, api: Api) -> int:
        options = self.options
        plan = ProofPlan(
            image=options.image,
            model=options.model,
            gpu_pools=options.gpu_pools,
            volume=options.volume,
            hourly_price=options.price_per_hour,
            limit_minutes=options.minutes,
        )
        for line in plan.describe():
            self.report(line)
        self._confirm("Create the endpoints?")
        folder = options.output or Path(".prove", f"platform-{datetime.now(UTC):%Y-%m-%d-%H%M}")
        endpoints = ProofEndpoints(api, plan, self.report)
        run = PlatformRun(endpoints, plan, account.api_key(), self.report, options.only)
        try:
            run.perform()
        finally:
            # First, in case that the report can't be written.
            self._report_left(run.left)
            versions = self._versions(plan)
            report = make_report(run.outcomes, versions, run.left)
            write_report(report, folder, self.secrets)
            self.report(f"The page: {folder}/README.md\nThe result to send: {folder}/result.json")
        has_problem = any(
            outcome.problem and not outcome.problem.startswith("skipped")
            for outcome in run.outcomes
        )
        return 1 if run.left or has_problem else 0

    def _versions(self, plan: ProofPlan) -> dict[str, str]:
        is_runpod = self.options.api_url == API_URL
        versions = {
            "platform": "RunPod Serverless" if is_runpod else f"a stand-in, {self.options.api_url}",
            "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            "client": llm_worker_client.__version__,
            "vLLM of the client's settings": LISTING.vllm,
            "image": plan.image,
            "model": plan.model,
            "GPU pools": ", ".join(plan.main_request()["gpu"]["pools"]),
            "network volume": "yes" if plan.volume else "no",
            "Python": platform.python_version(),
        }
        git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        with suppress(OSError):
            commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
            versions |= {"commit": commit} if commit else {}
        return versions

    def _delete_leftovers(self, api: Api) -> dict[str, str]:
        """Offer to delete the endpoints of earlier runs; return those that may be left."""
        found = find_endpoints(api, FAMILY)
        left = name_unidentified(found.without_ids)
        if found.names:
            self.report("endpoints of earlier or concurrent runs:")
            for line in describe_endpoints(found.names):
                self.report(line)
            self._confirm("Delete them, with all their jobs?")
            left |= delete_endpoints(api, found.names, self.report)
        self._report_left(left)
        return left

    def _report_left(self, left: dict[str, str]) -> None:
        if left:
            self.report("these endpoints may be left: delete them in the console, or run again")
        for line in describe_endpoints(left):
            self.report(line)

    def _confirm(self, question: str) -> None:
        """Ask a question once; raise a ``DeployError`` unless the answer is yes."""
        if self.options.yes:
            return
        if not sys.stdin.isatty():
            raise PlanError(["--yes: it is required without a terminal"])
        self.report(f"{question} [y/N]")
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            raise DeployError("stopped: nothing was created")


def read_command_line(arguments: list[str]) -> Namespace:
    parser = argparse.ArgumentParser("proof.platform", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--image", help="the worker's image, with its tag, which the platform can pull")
    add("--model", default=DEFAULT_MODEL, help=f"a small model (default: {DEFAULT_MODEL})")
    add("--gpu-pools", nargs="+", metavar="POOL", help="default: by the model's size")
    add("--volume", metavar="ID", help="an existing network volume, for the batch")
    add("--price-per-hour", type=float, metavar="USD", help="price of a worker, for the estimate")
    add(
        "--minutes",
        type=float,
        default=DEFAULT_LIMIT_MINUTES,
        help=f"limit of the run, without the deletion (default: {DEFAULT_LIMIT_MINUTES:g})",
    )
    names = [step.name for step in STEPS]
    add("--only", nargs="+", default=[], choices=names, metavar="STEP", help=", ".join(names))
    add("--output", type=Path, metavar="DIR", help="default: .prove/platform-<date>")
    add("--yes", action="store_true", help="answer all questions with yes")
    add(
        "--delete-leftovers",
        action="store_true",
        help="only delete the endpoints of earlier runs, by the prefix of their names",
    )
    add("--api-url", default=API_URL, metavar="URL", help="REST API")
    add("--queue-url", default=account.platform_base_url(), metavar="URL", help="queues")
    options = parser.parse_args(arguments)
    if not options.image and not options.delete_leftovers:
        parser.error("--image is required: no image is published (make image, then push it)")
    if not options.minutes > 0:
        parser.error("--minutes: more than 0")
    return options


def main(arguments: list[str], sleep: Callable[[float], None] = time.sleep) -> int:
    command = ProofCommand(read_command_line(arguments), sleep)
    try:
        with exit_signals_interrupt():
            return command.run()
    except PlanError as error:
        command.report(str(error))
        return USAGE_ERROR
    except (DeployError, account.NoApiKey) as error:
        command.report(str(error))
        return 1
    except KeyboardInterrupt:
        command.report("interrupted")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
