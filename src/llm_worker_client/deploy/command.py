"""The command `deploy`: plan, apply, status, logs, delete."""

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
from typing import Any, get_args

from llm_worker_client import account
from llm_worker_client.deploy.api import API_URL, Api
from llm_worker_client.deploy.apply import WAIT_S, Deployment
from llm_worker_client.deploy.changes import Step, check_volumes, next_step
from llm_worker_client.deploy.errors import DeployError, PlanError
from llm_worker_client.deploy.plan import Plan, read_file, read_plan
from llm_worker_client.deploy.settings import Secrets
from llm_worker_client.deploy.workers import Log, status, status_lines, worker_to_read

# Status of a command line or a plan that is wrong, and of a command that was interrupted.
WRONG = 2
INTERRUPTED = 130
_ENDS = (signal.SIGTERM, signal.SIGHUP)
# Seconds without a line, after which a log that is not followed has ended.
_QUIET_S = 3.0


class Command:
    """One run of the command: everything that it prints is masked."""

    def __init__(self, options: Namespace, sleep: Callable[[float], None]) -> None:
        self.options = options
        self._sleep = sleep
        self.secrets = Secrets()

    def print(self, text: str) -> None:
        """Print a line of the result."""
        sys.stdout.write(self.secrets.masked(text) + "\n")
        sys.stdout.flush()

    def tell(self, text: str) -> None:
        """Print a line about what is going on."""
        # The terminal may be gone, which is no reason to leave things half done.
        with suppress(OSError):
            sys.stderr.write(self.secrets.masked(text) + "\n")

    @contextmanager
    def api(self) -> Iterator[Api]:
        """Open the account's endpoints."""
        key = account.api_key()
        self.secrets.hide([key])
        with closing(Api(key, self.options.api_url, self.options.queue_url, self._sleep)) as api:
            yield api

    def plan(self) -> None:
        wanted = self._wanted()
        if self.options.offline:
            step = next_step(wanted, None, f"{self.options.api_url.rstrip('/')}/serverless")
        else:
            with self.api() as api:
                step = self._next_step(api, wanted)
        content = {"method": step.verb, "url": step.url, "body": step.body, "changes": step.changes}
        # The same step gives the same bytes.
        self.print(_json(content))

    def apply(self) -> None:
        wanted = self._wanted()
        with self.api() as api:
            step = self._next_step(api, wanted)
            for line in step.changes or ("nothing to change",):
                self.tell(line)
            wait_s = 0.0 if self.options.no_wait else self.options.wait_s
            self.print(Deployment(api, self.tell, self.tell, wait_s).carry_out(step))

    def status(self) -> None:
        with self.api() as api:
            found = status(api, self._named(api))
        for line in [_json(found)] if self.options.json else status_lines(found):
            self.print(line)

    def logs(self) -> None:
        options = self.options
        with self.api() as api:
            endpoint = self._named(api)
            worker = options.worker or worker_to_read(api, endpoint)
            query = {"tail": str(options.tail), "since": options.since, "source": options.source}
            query = {key: value for key, value in query.items() if value}
            # A worker that goes on printing does not end its log.
            most = None if options.since else options.tail
            log = Log(api, endpoint["id"], worker, query)
            lines = islice(log.read(_QUIET_S), most) if options.no_follow else log.follow()
            for line in lines:
                self.print(line)

    def delete(self) -> None:
        with self.api() as api:
            endpoint = self._named(api)
            if not self.options.yes and not self._agreed(endpoint):
                raise DeployError("not deleted")
            api.delete(endpoint["id"])
            self.print(f"deleted: {endpoint['id']}")

    def _wanted(self) -> dict[str, Any]:
        fields = read_file(self.options.file) if self.options.file else {}
        flags = {name: getattr(self.options, name) for name in Plan.model_fields}
        pairs = flags.pop("settings")
        fields |= {name: value for name, value in flags.items() if value is not None}
        if pairs:
            before = fields.get("settings")
            fields["settings"] = (before if isinstance(before, dict) else {}) | dict(pairs)
        plan, remarks = read_plan(fields, unknown_settings=self.options.unknown_settings)
        for line in remarks:
            self.tell(line)
        return plan.request()

    def _next_step(self, api: Api, wanted: dict[str, Any]) -> Step:
        if found := api.find(wanted["name"]):
            self.secrets.learn(found.get("env") or {})
        step = next_step(wanted, found, api.url())
        if {"networkVolumes", "dataCenterIds"} & step.body.keys():
            check_volumes(api, wanted)
        return step

    def _named(self, api: Api) -> dict[str, Any]:
        found = api.get(self.options.name)
        self.secrets.learn(found.get("env") or {})
        return found

    def _agreed(self, endpoint: dict[str, Any]) -> bool:
        if not sys.stdin.isatty():
            raise PlanError(["--yes: add it where no terminal is there to ask at"])
        self.tell(f"Delete {endpoint['name']} ({endpoint['id']}), with all its jobs? [y/N]")
        return sys.stdin.readline().strip().lower() in {"y", "yes"}


Flags = dict[str, dict[str, Any]]

NAME: Flags = {"name": {"help": "of the endpoint, or its id"}}
PLAN: Flags = {"--offline": {"action": "store_true", "help": "ask nobody: as if it were new"}}
APPLY: Flags = {
    "--no-wait": {"action": "store_true", "help": "wait for no answer"},
    "--wait-s": {"type": float, "default": WAIT_S, "help": "for the first answer"},
}
STATUS: Flags = NAME | {"--json": {"action": "store_true", "help": "for programs"}}
LOGS: Flags = NAME | {
    "--worker": {"help": "its id, where there are several"},
    "--tail": {"type": int, "default": 100, "help": "earlier lines, at most 5000"},
    "--since": {"metavar": "TIME", "help": "RFC 3339, instead of --tail"},
    "--source": {"choices": ["container", "system"], "help": "one of both only"},
    "--no-follow": {"action": "store_true", "help": "end after the earlier lines"},
}
DELETE: Flags = NAME | {"--yes": {"action": "store_true", "help": "do not ask"}}

COMMANDS: dict[str, tuple[Callable[[Command], None], str, Flags]] = {
    "plan": (Command.plan, "print the request that apply would send, and what it changes", PLAN),
    "apply": (Command.apply, "create or change the endpoint, and wait for its first answer", APPLY),
    "status": (Command.status, "print how its workers and jobs are", STATUS),
    "logs": (Command.logs, "follow a worker's log", LOGS),
    "delete": (Command.delete, "delete the endpoint", DELETE),
}


def register(parser: ArgumentParser) -> None:
    """Add the command's words and flags to a parser."""
    commands = parser.add_subparsers(dest="deploy", required=True, metavar="COMMAND")
    for name, (_, text, flags) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("--api-url", default=API_URL, metavar="URL", help="REST API")
        command.add_argument(
            "--queue-url", default=account.base_url(), metavar="URL", help="queues"
        )
        if name in {"plan", "apply"}:
            _add_plan(command)
        for flag, options in flags.items():
            command.add_argument(flag, **options)


def run(options: Namespace, sleep: Callable[[float], None] = time.sleep) -> int:
    """Run the command that ``register``'s flags say, and return its exit status."""
    command = Command(options, sleep)
    # Whoever ends a build or closes a terminal also wants back what it has begun.
    ends = [one for one in _ENDS if signal.getsignal(one) == signal.SIG_DFL]
    for one in ends:
        signal.signal(one, signal.default_int_handler)
    try:
        COMMANDS[options.deploy][0](command)
    except PlanError as wrong:
        command.tell(str(wrong))
        return WRONG
    except (DeployError, account.NoKey) as failed:
        command.tell(str(failed))
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has enough; Python would complain about what is still to be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        for one in ends:
            signal.signal(one, signal.SIG_DFL)
    return 0


def _add_plan(command: ArgumentParser) -> None:
    command.add_argument("-f", "--file", type=Path, metavar="YAML", help="the fields of a plan")
    for name, field in Plan.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        several = list in {getattr(kind, "__origin__", None) for kind in kinds}
        types = {"settings": _pair}
        number = next((kind for kind in (int, float) if kind in kinds), str)
        command.add_argument(
            f"--{name.replace('_', '-')}",
            type=types.get(name, number),
            nargs="+" if several or name == "settings" else None,
            action="extend" if several or name == "settings" else "store",
            help=field.description,
        )
    command.add_argument(
        "--unknown-settings", action="store_true", help="take settings that look wrong"
    )


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        # Not the text itself, which may hold a secret.
        raise argparse.ArgumentTypeError("write NAME=VALUE")
    return name, value


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
