"""The command `deploy` with its subcommands plan, apply, status, logs and delete."""

import argparse
import json
import os
import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, get_args

from llm_worker_client import account
from llm_worker_client.deploy.api import API_URL, Api
from llm_worker_client.deploy.apply import (
    RESPONSE_WAIT_S,
    DeployStep,
    EndpointDeployer,
    check_volumes,
    plan_deploy_step,
)
from llm_worker_client.deploy.errors import DeployError, PlanError
from llm_worker_client.deploy.plan import EndpointPlan, read_plan_file, validate_plan
from llm_worker_client.deploy.settings import SecretMasker
from llm_worker_client.deploy.workers import WorkerLog, format_status, get_status, only_worker_id
from llm_worker_client.terminal import (
    INTERRUPTED,
    USAGE_ERROR,
    print_line,
    print_message,
    print_text,
)

_EXIT_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
# Seconds without a line after which ``logs --no-follow`` ends.
_LOG_IDLE_S = 3.0


class AccountCommand:
    """One run of a command about the account, which masks secrets in all its output."""

    def __init__(self, options: Namespace, sleep: Callable[[float], None]) -> None:
        self.options = options
        self._sleep = sleep
        self.secrets = SecretMasker()

    def report(self, text: str) -> None:
        """Print a line about the progress or an error to stderr."""
        # The terminal may be closed, which must not interrupt the work.
        with suppress(OSError):
            print_message(self.secrets.mask(text))

    @contextmanager
    def open_api(self) -> Iterator[Api]:
        """Open a client for the account's endpoints; mask the account's key in all output."""
        key = account.api_key()
        self.secrets.add([key])
        with closing(Api(key, self.options.api_url, self.options.queue_url, self._sleep)) as api:
            yield api


class DeployCommand(AccountCommand):
    """One run of the command ``deploy``."""

    def print_masked(self, line: str) -> None:
        print_line(self.secrets.mask(line))
        sys.stdout.flush()

    def print_json(self, content: dict[str, Any]) -> None:
        """Print the result; with sorted keys, so that the same one prints the same bytes."""
        text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
        print_text(self.secrets.mask(text))

    def run_plan(self) -> None:
        request = self._make_request_body()
        if self.options.offline:
            step = plan_deploy_step(request, None, f"{self.options.api_url.rstrip('/')}/serverless")
        else:
            with self.open_api() as api:
                step = self._plan_deploy_step(api, request)
        content = {"method": step.method, "url": step.url, "body": step.body}
        self.print_json(content | {"changes": step.changes})

    def run_apply(self) -> None:
        request = self._make_request_body()
        with self.open_api() as api:
            step = self._plan_deploy_step(api, request)
            for line in step.changes or ("nothing to change",):
                self.report(line)
            wait_s = 0.0 if self.options.no_wait else self.options.wait_s
            self.print_masked(EndpointDeployer(api, self.report, self.report, wait_s).deploy(step))

    def run_status(self) -> None:
        with self.open_api() as api:
            status = get_status(api, self._get_endpoint(api))
        if self.options.json:
            self.print_json(status)
            return
        for line in format_status(status):
            self.print_masked(line)

    def run_logs(self) -> None:
        options = self.options
        with self.open_api() as api:
            endpoint = self._get_endpoint(api)
            worker = options.worker or only_worker_id(api, endpoint)
            query = {"tail": str(options.tail), "since": options.since, "source": options.source}
            query = {key: value for key, value in query.items() if value}
            # Limit the lines, as the log of a running worker does not end.
            max_lines = None if options.since else options.tail
            log = WorkerLog(api, endpoint["id"], worker, query)
            lines = log.follow()
            if options.no_follow:
                lines = islice(log.read_until_idle(_LOG_IDLE_S), max_lines)
            for line in lines:
                self.print_masked(line)

    def run_delete(self) -> None:
        with self.open_api() as api:
            endpoint = self._get_endpoint(api)
            if not self.options.yes:
                if not sys.stdin.isatty():
                    raise PlanError(["--yes: it is required without a terminal"])
                identity = f"{endpoint['name']} ({endpoint['id']})"
                self.report(f"Delete {identity}, with all its jobs? [y/N]")
                if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
                    raise DeployError("not deleted")
            api.delete_endpoint(endpoint["id"])
            self.print_masked(f"deleted: {endpoint['id']}")

    def _make_request_body(self) -> dict[str, Any]:
        fields = read_plan_file(self.options.file) if self.options.file else {}
        flags = {name: getattr(self.options, name) for name in EndpointPlan.model_fields}
        pairs = flags.pop("settings")
        fields |= {name: value for name, value in flags.items() if value is not None}
        if pairs:
            settings = fields.get("settings")
            fields["settings"] = (settings if isinstance(settings, dict) else {}) | dict(pairs)
        plan, remarks = validate_plan(fields, allow_unknown=self.options.unknown_settings)
        for line in remarks:
            self.report(line)
        return plan.to_request_body()

    def _plan_deploy_step(self, api: Api, request: dict[str, Any]) -> DeployStep:
        if existing := api.find_endpoint_by_name(request["name"]):
            self.secrets.add_from_env(existing.get("env") or {})
        step = plan_deploy_step(request, existing, api.endpoints_url())
        if {"networkVolumes", "dataCenterIds"} & step.body.keys():
            check_volumes(api, request)
        return step

    def _get_endpoint(self, api: Api) -> dict[str, Any]:
        endpoint = api.endpoint_by_name_or_id(self.options.name)
        self.secrets.add_from_env(endpoint.get("env") or {})
        return endpoint


def add_arguments(parser: ArgumentParser) -> None:
    common = ArgumentParser(add_help=False)
    common.add_argument("--api-url", default=API_URL, metavar="URL", help="REST API")
    common.add_argument(
        "--queue-url", default=account.platform_base_url(), metavar="URL", help="queues"
    )
    named = ArgumentParser(add_help=False)
    named.add_argument("name", help="the endpoint's name or id")
    planned = ArgumentParser(add_help=False)
    planned.add_argument("-f", "--file", type=Path, metavar="YAML", help="the fields of a plan")
    for name, field in EndpointPlan.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        is_list = list in {getattr(kind, "__origin__", None) for kind in kinds}
        value_type = next((kind for kind in (int, float) if kind in kinds), str)
        planned.add_argument(
            f"--{name.replace('_', '-')}",
            type=_parse_setting if name == "settings" else value_type,
            nargs="+" if is_list or name == "settings" else None,
            action="extend" if is_list or name == "settings" else "store",
            help=field.description,
        )
    planned.add_argument(
        "--unknown-settings", action="store_true", help="allow settings that look wrong"
    )

    commands = parser.add_subparsers(dest="deploy", required=True, metavar="COMMAND")
    plan, apply, status, logs, delete = (
        commands.add_parser(name, parents=[common, parent], help=text, description=text)
        for name, parent, text in (
            ("plan", planned, "print the request that apply would send, and what it changes"),
            ("apply", planned, "create or change the endpoint, and wait for its first response"),
            ("status", named, "print the status of its workers and jobs"),
            ("logs", named, "follow a worker's log"),
            ("delete", named, "delete the endpoint"),
        )
    )
    plan.add_argument(
        "--offline", action="store_true", help="plan for a new endpoint, without requests"
    )
    apply.add_argument("--no-wait", action="store_true", help="don't wait for the first response")
    apply.add_argument(
        "--wait-s",
        type=float,
        default=RESPONSE_WAIT_S,
        help="seconds to wait for the first response",
    )
    status.add_argument("--json", action="store_true", help="print JSON")
    logs.add_argument("--worker", help="the worker's id, if there are several")
    logs.add_argument("--tail", type=int, default=100, help="earlier lines, at most 5000")
    logs.add_argument("--since", metavar="TIME", help="RFC 3339, instead of --tail")
    logs.add_argument("--source", choices=["container", "system"], help="print only this source")
    logs.add_argument("--no-follow", action="store_true", help="exit after the earlier lines")
    delete.add_argument("--yes", action="store_true", help="do not ask")


def run_subcommand(options: Namespace, sleep: Callable[[float], None] = time.sleep) -> int:
    command = DeployCommand(options, sleep)
    runs = {
        "plan": command.run_plan,
        "apply": command.run_apply,
        "status": command.run_status,
        "logs": command.run_logs,
        "delete": command.run_delete,
    }
    try:
        with exit_signals_interrupt():
            runs[options.deploy]()
    except PlanError as error:
        command.report(str(error))
        return USAGE_ERROR
    except (DeployError, account.NoApiKey) as error:
        command.report(str(error))
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python would report the closed pipe again when it flushes the rest of the output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


@contextmanager
def exit_signals_interrupt() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that an interrupted deployment is rolled back."""
    signals = [number for number in _EXIT_SIGNALS if signal.getsignal(number) == signal.SIG_DFL]

    def interrupt_once(number: int, frame: FrameType | None) -> None:
        # A closed terminal may send several signals, which must not interrupt the roll-back.
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in signals:
        signal.signal(number, interrupt_once)
    try:
        yield
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_DFL)


def _parse_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        # Don't print the text, which may contain a secret.
        raise argparse.ArgumentTypeError("write NAME=VALUE")
    return name, value
