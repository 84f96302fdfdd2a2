"""Adapters that come, change and go on the network volume while an engine runs (scripts/)."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.models.lora import BROKEN, CONFIG, REFUSED_BY_VLLM, configured, make_adapter
from support.processes.background import HUNG_S
from support.releases import since

SCRIPT = ROOT / "tests" / "model" / "scripts" / "adapters.py"
GREEDY = {"temperature": 0, "max_tokens": 8}
# Long enough for vLLM's prefix cache.
PROMPT = "Count: " * 100


class Engine:
    """The engine of the script, and its volume."""

    def __init__(self, process: "subprocess.Popen[str]", volume: Path, model: Path) -> None:
        self.adapters = volume / "adapters"
        self.scratch = volume / "tmp"
        self._model = model
        self._process = process
        self._ids = map(str, itertools.count())
        self._answers: dict[str, dict[str, Any]] = {}

    def make(self, name: str, seed: int = 1) -> Path:
        """Write an adapter to the volume, or replace it."""
        shutil.rmtree(self.adapters / name, ignore_errors=True)
        make_adapter(self.adapters / name, self._model, seed)
        return self.adapters / name

    def begin(self, **request: Any) -> str:
        id_ = next(self._ids)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": id_, **request}) + "\n")
        self._process.stdin.flush()
        return id_

    def has_answered(self, id_: str) -> bool:
        return id_ in self._answers

    def end(self, id_: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        while id_ not in self._answers:
            line = self._process.stdout.readline()
            assert line, (self.adapters.parent / "stderr").read_text()
            answer = json.loads(line)
            self._answers[answer.pop("id")] = answer
        return self._answers[id_]

    def ask(self, **request: Any) -> Any:
        answer = self.end(self.begin(**request))
        assert "status" not in answer, answer
        return answer["answer"]

    def refusal(self, **request: Any) -> tuple[int, str]:
        answer = self.end(self.begin(**request))
        return answer["status"], answer["message"]

    def text(self, **keys: str) -> str:
        """Return the answer of the raw path."""
        return str(self.ask(job=job(**keys)))

    def served(self) -> list[str]:
        models = self.ask(path="/v1/models")["data"]
        return [model["id"] for model in models]


def job(prompt: str = PROMPT, **keys: Any) -> dict[str, Any]:
    return {"prompt": prompt, "sampling_params": GREEDY, **keys}


@pytest.fixture(scope="module")
def live(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    volume = tmp_path_factory.mktemp("volume")
    (volume / "tmp").mkdir()
    paths = [str(ROOT / path) for path in ("src", "tests")]
    environ = {
        **{kept: os.environ[kept] for kept in ("PATH", "HOME") if kept in os.environ},
        "PYTHONPATH": os.pathsep.join(paths),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "TMPDIR": str(volume / "tmp"),
    }
    command = [sys.executable, str(SCRIPT), str(demo_model), str(volume)]
    with (volume / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        with process:
            yield Engine(process, volume, demo_model)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(HUNG_S) == 0, (volume / "stderr").read_text()
    assert not list((volume / "tmp").glob("worker-adapters-*")), "copies are left behind"


@pytest.fixture(scope="module")
def plain(live: Engine) -> str:
    """The answer without an adapter."""
    return live.text()


def test_an_adapter_that_appears_on_the_volume_is_served_without_a_restart(
    live: Engine, plain: str
) -> None:
    assert live.refusal(job=job(lora="new"))[0] == 404
    live.make("new")
    assert "new" in live.ask(volume=True)
    running = live.begin(job=job())
    assert live.text(lora="new") == live.text(model="new") != plain
    assert live.end(running)["answer"] == plain
    assert "new" in live.served()


def test_an_adapter_answers_on_the_openai_path_once_it_is_adopted(live: Engine, plain: str) -> None:
    live.make("open", seed=2)
    live.ask(adopt=["open"])
    body = {"model": "open", "prompt": PROMPT, **GREEDY}
    answer = live.ask(path="/v1/completions", body=body)["choices"][0]["text"]
    assert answer == live.text(lora="open") != plain


def test_many_first_requests_at_once_load_an_adapter_once(live: Engine, plain: str) -> None:
    live.make("busy")
    begun = [live.begin(job=job(lora="busy")) for _ in range(8)]
    (text,) = {live.end(id_)["answer"] for id_ in begun}
    assert text != plain
    assert len(list(live.scratch.glob("worker-adapters-*/busy-*"))) == 1


@since("0.31", "vLLM knew the prefixes that it caches by the adapter's name alone")
def test_a_replaced_adapter_answers_with_its_new_weights(live: Engine, plain: str) -> None:
    live.make("other", seed=3)
    live.make("fickle", seed=1)
    first = live.text(lora="fickle")
    live.make("fickle", seed=3)
    second = live.text(lora="fickle")
    assert second == live.text(lora="other")
    live.make("fickle", seed=1)
    assert live.text(lora="fickle") == first
    assert len({first, second, plain}) == 3
    live.ask(unload=["other", "fickle"])


def test_a_removed_adapter_is_served_no_more(live: Engine) -> None:
    live.text(lora=live.make("gone").name)
    shutil.rmtree(live.adapters / "gone")
    status, message = live.refusal(job=job(lora="gone"))
    assert (status, "'gone'" in message) == (404, True)
    assert "gone" not in live.served()
    assert "gone" not in live.ask(volume=True)


def test_a_running_request_keeps_an_adapter_that_is_removed(live: Engine) -> None:
    live.make("leaving")
    params = {"temperature": 0, "max_tokens": 400, "ignore_eos": True}
    long = {"prompt": "Count:", "lora": "leaving", "sampling_params": params}
    undisturbed = live.ask(job=long)
    running = live.begin(job=long)
    live.text(lora="leaving")  # by then the first has begun, too
    shutil.rmtree(live.adapters / "leaving")
    assert live.refusal(job=job(lora="leaving"))[0] == 404
    assert not live.has_answered(running)
    assert live.end(running)["answer"] == undisturbed


def test_an_unloaded_adapter_is_loaded_again_when_it_is_asked_for(live: Engine) -> None:
    text = live.text(lora=live.make("idle").name)
    live.ask(unload=["idle"])
    assert "idle" not in live.served()
    assert live.text(lora="idle") == text
    live.ask(unload=["idle"])


@pytest.mark.parametrize("name", ["never-there", "demo", ".."])
def test_an_adapter_that_is_not_loaded_cannot_be_unloaded(live: Engine, name: str) -> None:
    assert live.refusal(unload=[name])[0] == 404


@pytest.mark.parametrize("kind", [*BROKEN, *REFUSED_BY_VLLM])
def test_a_broken_adapter_is_refused_and_the_engine_answers_on(
    live: Engine, plain: str, kind: str
) -> None:
    change, reason = {**BROKEN, **REFUSED_BY_VLLM}[kind]
    change(live.make(kind))
    running = live.begin(job=job())
    status, message = live.refusal(job=job(lora=kind))
    assert status == 400
    assert reason in message
    assert str(live.adapters.parent) not in message
    assert live.refusal(adopt=[kind]) == (status, message)
    # One that lacks a file is not on the volume yet.
    assert reason in live.ask(volume=True).get(kind, reason)
    assert live.end(running)["answer"] == live.text() == plain
    assert kind not in live.served()


def test_a_mended_adapter_is_served(live: Engine, plain: str) -> None:
    configured(r=5)(live.make("mended"))
    # Its files are looked at before anybody names it.
    assert "but r is 5" in live.ask(volume=True)["mended"]
    assert live.refusal(job=job(lora="mended"))[0] == 400
    live.make("mended")
    assert live.text(lora="mended") != plain
    assert live.ask(volume=True)["mended"] is None
    (live.adapters / "mended" / CONFIG).write_text("{")
    assert live.refusal(job=job(lora="mended"))[0] == 400
    assert "mended" not in live.served()


HOSTILE = [
    "",
    ".",
    "..",
    "../outside",
    "..%2foutside",
    "..\\outside",
    "good/../../outside",
    "./inside",
    "inside/",
    "/inside",
    "{volume}/outside",
    "{volume}/adapters/inside",
    "file://{volume}/outside",
    "~",
    "inside\0",
    "inside\n",
    " inside",
    "-inside",
    "inside\u202e",
    "\u0131nside",
    "\ud800",
    "*",
    "in" * 5000,
    "linked",
    "linked-files",
    "circle",
    "org/adapter",
]


@pytest.fixture(scope="module")
def tempting(live: Engine, demo_model: Path) -> None:
    """Adapters outside of the directory, which names could lead to."""
    outside = live.adapters.parent / "outside"
    make_adapter(outside, demo_model)
    live.make("inside")
    (live.adapters / "linked").symlink_to(outside)
    (live.adapters / "linked-files").mkdir()
    for file in outside.iterdir():
        (live.adapters / "linked-files" / file.name).symlink_to(file)
    (live.adapters / "circle").symlink_to("circle")


@pytest.mark.usefixtures("tempting")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_leads_elsewhere_is_no_adapter(live: Engine, name: str) -> None:
    lora = name.format(volume=live.adapters.parent)
    status, message = live.refusal(job=job(lora=lora))
    assert status == 404
    assert "no model or adapter" in message
    assert lora not in live.ask(volume=True)
    assert live.refusal(adopt=[lora])[0] == 404
    assert lora not in live.served()


@pytest.mark.usefixtures("tempting")
def test_no_link_out_of_the_directory_is_listed(live: Engine) -> None:
    assert not {"linked", "linked-files", "circle"} & set(live.ask(volume=True))


def test_the_models_own_name_is_never_an_adapters(
    live: Engine, plain: str, demo_model: Path
) -> None:
    live.make(demo_model.name, seed=2)
    assert live.refusal(adopt=[demo_model.name])[0] == 404
    assert live.text(model=demo_model.name) == plain
