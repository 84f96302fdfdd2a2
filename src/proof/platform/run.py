"""Deploys the endpoint, performs the steps, and deletes the endpoints, however the run ends."""

import time
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from llm_worker_client.deploy.apply import RESPONSE_WAIT_S
from llm_worker_client.deploy.errors import DeployError
from proof.platform.endpoints import OutOfTime, ProofEndpoints, limit_time
from proof.platform.observations import StepResult
from proof.platform.plan import ProofPlan
from proof.platform.steps import STEPS, ProofStep
from proof.platform.target import EndpointTarget

# Seconds in which a failed deployment reports the state and the log of a worker.
_REPORT_S = 10.0


@dataclass(frozen=True)
class StepOutcome:
    """The outcome of a step."""

    name: str
    problem: str | None = None  # why there is no result; None if there is one
    facts: dict[str, Any] = field(default_factory=dict)  # the observed behaviour
    figures: dict[str, Any] = field(default_factory=dict)  # values that are not compared
    log: list[str] = field(default_factory=list)  # the last lines of a worker's log
    seconds: float = 0.0


class PlatformRun:
    """One run, of the steps in ``only``, or of all if it is empty."""

    def __init__(
        self,
        endpoints: ProofEndpoints,
        plan: ProofPlan,
        key: str,
        report: Callable[[str], None],
        only: Collection[str] = (),
    ) -> None:
        self._endpoints = endpoints
        self._plan = plan
        self._key = key
        self._report = report
        self._steps = [step for step in STEPS if not only or step.name in only]
        self._deadline = time.monotonic() + 60 * plan.limit_minutes
        self._main_id = ""
        self.outcomes: list[StepOutcome] = []
        self.left: dict[str, str] = {}

    def perform(self) -> None:
        """Deploy the endpoint, perform the steps and delete the endpoints.

        ``outcomes`` has a row for each step, also if the deployment fails. ``left`` has the
        endpoints that could not be deleted.
        """
        try:
            limit_s = RESPONSE_WAIT_S + 2 * _REPORT_S
            if self._try("deployment", self._deploy, limit_s).problem is not None:
                for step in self._steps:
                    self._add(StepOutcome(step.name, "not performed: the deployment failed"))
                return
            with closing(self._open_target(self._main_id, self._plan.main_request())) as target:
                for step in self._steps:
                    if step.needs_volume and self._plan.volume is None:
                        self._add(StepOutcome(step.name, "skipped: it needs --volume"))
                    elif step.fails_to_start:
                        self._try(step.name, partial(self._observe_broken, step), step.limit_s)
                    else:
                        self._try(step.name, partial(step.observe, target), step.limit_s)
        finally:
            self.left = self._endpoints.delete_all()

    def _deploy(self) -> StepResult:
        # The deployer's own error contains the states of the workers.
        wait_s = max(1.0, min(RESPONSE_WAIT_S, self._remaining_s() // 1 - _REPORT_S))
        self._main_id = self._endpoints.deploy(self._plan.main_request(), wait_s)
        return StepResult({"a worker answers": True})

    def _observe_broken(self, step: ProofStep) -> StepResult:
        request = self._plan.broken_request()
        with closing(self._open_target(self._endpoints.deploy(request, 0), request)) as target:
            return step.observe(target)

    def _open_target(self, endpoint_id: str, request: dict[str, Any]) -> EndpointTarget:
        scaling = {key: request[key] for key in ("workers", "scaling")}
        api, model = self._endpoints.api, self._plan.model
        return EndpointTarget(api, self._key, endpoint_id, model, scaling)

    def _try(self, name: str, observe: Callable[[], StepResult], limit_s: float) -> StepOutcome:
        start = time.monotonic()
        if (remaining_s := self._remaining_s()) <= 0:
            return self._add(StepOutcome(name, "not performed: the run's time is over"))
        problem, result = None, StepResult({})
        self._report(f"{name} ...")
        try:
            with limit_time(min(limit_s, remaining_s)):
                result = observe()
        except OutOfTime:
            problem = f"no result within {min(limit_s, remaining_s):.0f} s"
        except DeployError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - any unexpected response is a row, not the end
            problem = f"{type(error).__name__}: {error}"
        seconds = round(time.monotonic() - start, 1)
        outcome = StepOutcome(name, problem, result.facts, result.figures, result.log, seconds)
        return self._add(outcome)

    def _add(self, outcome: StepOutcome) -> StepOutcome:
        self.outcomes.append(outcome)
        self._report(f"{outcome.name}: {outcome.problem or f'{outcome.seconds:g} s'}")
        return outcome

    def _remaining_s(self) -> float:
        return self._deadline - time.monotonic()
