"""The console's page: its size, its script's means, and the routes that it calls."""

import re
from functools import cache

import pytest
from support import ROOT
from support.console import check_headers, element, read_values

from emulator.faults import Faults
from emulator.http.control import ControlApi
from emulator.http.public_api import PublicApi
from emulator.http.worker_port import WorkerPort
from emulator.job_queue import Queue
from emulator.options import Options
from llm_worker_console import PAGE_FILE, make_page
from worker.dialects.table import ROUTES

PAGE = PAGE_FILE.read_text()
SCRIPT = element(PAGE, "script")
Calls = set[tuple[str, str]]


@cache
def calls_by_owner() -> dict[str, Calls]:
    """Return the methods and paths of the script's table, without the names of parameters."""
    table = SCRIPT.partition("const CALLS = {")[2].partition("\n};")[0]
    return {
        owner: {
            (method, anonymize(path)) for method, path in re.findall(r'"([A-Z]+) (/.*?)"', rows)
        }
        for owner, rows in re.findall(r"^  (\w+): \{\n(.*?)^  \}", table, re.DOTALL | re.MULTILINE)
    }


def anonymize(path: str) -> str:
    return re.sub(r"\{[\w:]+\}|<[\w ]+>", "{}", path.partition("?")[0])


def emulator_calls(api: PublicApi | ControlApi) -> Calls:
    return {(route.method, anonymize(route.path)) for route in api.routes()}


def test_the_page_is_small() -> None:
    assert len(PAGE.encode()) < 62_000


def test_the_page_has_one_script_one_style_and_no_other_source_of_code() -> None:
    assert re.findall(r"</(script|style)>", PAGE) == ["style", "script"]
    markup = PAGE.replace(SCRIPT, "")
    assert re.findall(r"\s(?:on\w+|style|src)=", markup) == []
    assert re.findall(r"(?:https?:)?//\S+", markup) == []


def test_the_script_adds_text_only_as_text() -> None:
    code = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|new Function|DOMParser|srcdoc"
    assert re.findall(rf"{code}|setAttribute\(\"(?:style|on)|import\(|localStorage", SCRIPT) == []
    # The namespace of SVG is a name and no address.
    assert set(re.findall(r"https?://[\w./]+", SCRIPT)) == {"http://www.w3.org/2000/svg"}


def test_every_request_goes_through_the_table_of_calls() -> None:
    assert SCRIPT.count("fetch(") == 1
    assert re.findall(r"XMLHttpRequest|EventSource|WebSocket|sendBeacon", SCRIPT) == []
    assert re.findall(r"send\((?!method, path)", SCRIPT) == []


def test_the_script_uses_every_call_of_the_table_and_no_other() -> None:
    table = SCRIPT.partition("const CALLS = {")[2].partition("\n};")[0]
    names = re.findall(r"^    (\w+): ", table, re.MULTILINE)
    used = re.findall(r'(?:call|find|act|createLongWork)\((?:\w+, |"[^"]+", )?"(\w+)"', SCRIPT)
    assert sorted(set(used)) == sorted(names)


def test_the_calls_are_routes_of_the_worker() -> None:
    routes = {(route.method, anonymize(route.path_template)) for route in ROUTES}
    assert calls_by_owner()["worker"] <= routes
    # A job that spells out its route has no other method behind a gateway.
    assert {method for method, _ in calls_by_owner()["worker"]} == {"GET", "POST"}


def test_the_calls_are_routes_of_the_platform_and_of_the_emulator() -> None:
    options = Options()
    queue, port = Queue(options), WorkerPort(options.host, 0)
    page = (ROOT / "docs/endpoint.md").read_text()
    documented = {
        (method, anonymize(path)) for method, path in re.findall(r"\| `([A-Z]+) (/.*?)` \|", page)
    }
    calls = calls_by_owner()
    assert calls["platform"] <= emulator_calls(PublicApi(queue, options)) & documented
    assert calls["emulator"] <= emulator_calls(ControlApi(queue, Faults(), port))
    assert set(calls) == {"worker", "platform", "emulator"}
    assert all(calls.values())


@pytest.mark.parametrize(("needs_key", "value"), [(True, "needed"), (False, "")])
def test_the_page_knows_its_server(needs_key: bool, value: str) -> None:
    page = make_page("proxy", needs_key=needs_key, endpoint_path='/v2/"><script>')
    text = page.body.decode()
    assert read_values(text) == {
        "server": "proxy",
        "endpoint": "/v2/&quot;&gt;&lt;script&gt;",
        "key": value,
    }
    check_headers(page.headers, text)
    assert re.findall(r"%[A-Z]+%", text) == []
