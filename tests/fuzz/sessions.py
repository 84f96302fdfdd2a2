"""Replays long sessions of coding agents: Claude Code with 260 tools, Codex with 1,200 items.

    python -m fuzz.sessions URL [KEY]

The URL is an OpenAI API's, without its ``/v1``. As a part of ``nox -s fuzz``, this starts an
HTTP server and a local endpoint, with a long context. A request that is refused is a failure.
"""

import asyncio
import shutil
import sys
import time
from argparse import Namespace
from collections import Counter

import httpx
from support import ROOT
from support.models.configs import CONTEXT, SHORT_TEMPLATE, copy_with_long_context
from support.traffic import compare
from support.traffic.compare import ACCEPTED
from support.traffic.extended import SESSIONS

from fuzz import print_line
from fuzz.target import Endpoint, Server, Target

SETTINGS = {
    "SERVED_MODEL_NAME": "demo",
    "MAX_MODEL_LEN": str(CONTEXT),
    "ENABLE_AUTO_TOOL_CHOICE": "1",
    "TOOL_CALL_PARSER": "hermes",
}
# The end of the endpoint's URL for requests to routes.
ROUTES = "/openai"


def run(args: Namespace) -> int:
    """Replay the sessions against both kinds of workers; return the number of refusals."""
    folder = args.logs / "sessions"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    demo = copy_with_long_context(ROOT / ".models" / "demo", folder / "demo", SHORT_TEMPLATE)
    settings = {**SETTINGS, "MODEL_NAME": str(demo)}
    targets: dict[str, Target] = {
        "": Server(args.checkout, folder / "serve", settings),
        ROUTES: Endpoint(args.checkout, folder / "endpoint", settings),
    }
    refused = 0
    for end, target in targets.items():
        with target.start():
            print_line(f"sessions: {type(target).__name__}, {target.log}")
            refused += asyncio.run(replay(f"{target.url}{end}"))
    return refused


async def replay(url: str, key: str = "any") -> int:
    """Replay all sessions; print their statuses, and return the number of refusals."""
    refused = 0
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=compare.TIMEOUT_S
    ) as client:
        send = compare.sender(client)
        for name, session in SESSIONS.items():
            statuses: Counter[int | None] = Counter()
            messages: Counter[str] = Counter()
            seconds = []
            for request in session():
                began = time.monotonic()
                outcome = await send(compare.shorten_answer(request))
                seconds.append(time.monotonic() - began)
                statuses[outcome.status] += 1
                if outcome.kind != ACCEPTED:
                    messages[outcome.pattern] += 1
            p50, p99 = (sorted(seconds)[int(len(seconds) * share)] for share in (0.5, 0.99))
            print_line(
                f"{name}: {sum(statuses.values())} requests: "
                f"{', '.join(f'{count} x {status}' for status, count in statuses.most_common())}; "
                f"p50 {p50:.3f} s, p99 {p99:.3f} s"
            )
            for message, count in messages.most_common():
                print_line(f"  {count} x {message}")
            refused += messages.total()
    return refused


if __name__ == "__main__":
    sys.exit(asyncio.run(replay(*sys.argv[1:3])) > 0)
