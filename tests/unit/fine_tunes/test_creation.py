"""Creating fine-tunes: of which model, of which rows, and what is refused by name."""

import asyncio
import importlib.util
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from support.engine.scripted import settings
from support.fine_tunes import CSV, uploaded
from support.network import Names

from worker.engine import Model
from worker.errors import Conflict, InputTooLarge, InvalidInput, NoSuchObject, RequestError
from worker.fine_tunes.creation import Creator, directory_of
from worker.fine_tunes.record import FineTune, FineTunes
from worker.fine_tunes.sources import ROWS, Sources
from worker.job.fine_tune import FineTuneSpec
from worker.media.fetcher import Fetcher
from worker.volume import ids

TEXT = frozenset({"generate"})
MODEL = Model(
    ("demo", "also"), 64, "cpu", TEXT, source="tiny/demo", place=Path("demo"), max_lora_rank=16
)
Serve = Callable[..., str]


def creator(fine_tunes: FineTunes, model: Model = MODEL, **more: Any) -> Creator:
    return Creator(fine_tunes, model, Sources(fine_tunes.files, None), **more)


def create(by: Creator, adapters: tuple[str, ...] = (), **asked: Any) -> FineTune:
    if not {"training_file", "training_path", "rows"} & asked.keys():
        asked["training_file"] = uploaded(by.fine_tunes)
    return by.create(FineTuneSpec.of_body(asked), ids.derived(FineTunes.prefix, "job-1"), adapters)


def refused(by: Creator, **asked: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        create(by, **asked)
    assert not by.fine_tunes.all()
    return caught.value


@pytest.mark.parametrize("name", [None, "demo", "also", "tiny/demo"])
def test_a_base_model_is_known_by_all_its_names(fine_tunes: FineTunes, name: str | None) -> None:
    assert create(creator(fine_tunes), model=name).request.base == "demo"
    # A process in another directory finds it, too.
    assert directory_of(MODEL) == Path.cwd() / "demo"


def test_what_was_asked_is_kept(fine_tunes: FineTunes) -> None:
    method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}}
    values: dict[str, Any] = {"seed": 7, "suffix": "mine", "metadata": {"a": "b"}}
    request = create(creator(fine_tunes), method=method, **values).request
    assert {name: getattr(request, name) for name in values} == values
    assert (request.spec.epochs, request.method, request.wandb) == (2, "supervised", None)


@pytest.mark.parametrize(
    ("changes", "name", "message"),
    [
        ({"max_lora_rank": None}, None, "its operator sets ENABLE_LORA=1"),
        ({"tasks": frozenset({"embed"})}, None, "it writes no text"),
        ({"quantization": "awq"}, None, "it is quantised"),
        ({"place": None}, None, "not read from a directory. MODEL_NAME has to"),
        ({}, "mine", "model: 'mine' is an adapter: a fine-tune begins with a base model, demo"),
        ({}, "other", "model: there is no base model 'other'; this worker has demo"),
    ],
)
def test_what_is_no_base_model_to_train_or_serve_is_refused(
    fine_tunes: FineTunes, changes: dict[str, Any], name: str | None, message: str
) -> None:
    error = refused(creator(fine_tunes, replace(MODEL, **changes)), model=name, adapters=("mine",))
    assert (message in error.message, error.status) == (True, 400)
    assert error.param == (name and "model")


SUPERVISED = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 99}}}


@pytest.mark.parametrize(
    ("field", "asked"),
    [
        ("hyperparameters.n_epochs", {"hyperparameters": {"n_epochs": 99}}),
        ("method.supervised.hyperparameters.n_epochs", {"method": SUPERVISED}),
        ("hyperparameters", {"hyperparameters": {}, "method": SUPERVISED}),
        ("method.type", {"method": {"type": "dpo", "dpo": {}}}),
        ("method.type", {"method": {"type": "reinforcement"}}),
        ("method", {"method": {"type": "supervised", "dpo": {}}}),
        ("suffix", {"suffix": "a" * 65}),
        *(("suffix", {"suffix": it}) for it in ("", "../x", "a b", "a.b", "ä", "a\n", "a/")),
        ("seed", {"seed": -1}),
        ("seed", {"seed": "7"}),
        ("metadata", {"metadata": {"a": "b" * 513}}),
        ("integrations.0.type", {"integrations": [{"type": "tensorboard"}]}),
        ("n_epochs", {"n_epochs": 3}),
    ],
)
def test_what_is_wrong_is_refused(fine_tunes: FineTunes, field: str, asked: dict[str, Any]) -> None:
    assert refused(creator(fine_tunes), **asked).param == field


def test_weights_and_biases_needs_its_package_and_a_key(fine_tunes: FineTunes) -> None:
    there = importlib.util.find_spec("wandb") is not None
    wandb = [{"type": "wandb", "wandb": {"project": "p", "tags": ["a"]}}]
    error = refused(creator(fine_tunes, wandb_key=not there), integrations=wandb)
    assert error.param == "integrations"
    assert ("WANDB_API_KEY" if there else "no package wandb") in error.message


@pytest.mark.parametrize(
    ("filename", "form"), [("a.CSV", "csv"), ("b.jsonl", "jsonl"), ("c.txt", None), ("d", None)]
)
def test_the_name_of_a_file_says_how_its_rows_are_written(
    fine_tunes: FineTunes, filename: str, form: str | None
) -> None:
    file = fine_tunes.files.receive([CSV], filename=filename, purpose="fine-tune")
    made = create(creator(fine_tunes), training_file=file.id)
    assert fine_tunes.data(made.request.training_file).form == form


@pytest.mark.parametrize("field", ["training_file", "validation_file"])
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("file-nothing", NoSuchObject),
        *((path, InvalidInput) for path in ("nothing.csv", "../../etc/passwd", "worker/files")),
        ("https://example.com/rows.csv", InvalidInput),
        ("of another purpose", InvalidInput),
    ],
)
def test_a_file_that_is_not_to_be_had_is_refused_by_the_field(
    fine_tunes: FineTunes, field: str, name: str, error: type[RequestError]
) -> None:
    if name == "of another purpose":
        name = uploaded(fine_tunes, purpose="batch")
    found = refused(creator(fine_tunes), **{field: name})
    assert isinstance(found, error)
    assert (found.param, found.message.partition(":")[0]) == (field, field)


A: dict[str, Any] = {"training_file": "inbox/a.csv"}
ROWS_OF_A: dict[str, Any] = {"rows": [{"prompt": "ä"}]}


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (A, {"training_file": "inbox/b.csv"}),
        ({"training_path": "inbox/a.csv"}, {"training_path": "inbox/b.csv"}),
        (ROWS_OF_A, {"rows": [{"prompt": "b"}]}),
        (ROWS_OF_A, A),
        (A, {**A, "validation_file": "inbox/b.csv"}),
        (A, {**A, "suffix": "other"}),
    ],
)
def test_a_request_that_comes_again_finds_what_it_has_made_and_another_is_refused(
    fine_tunes: FineTunes, tmp_path: Path, first: dict[str, Any], other: dict[str, Any]
) -> None:
    for name in ("inbox/a.csv", "inbox/b.csv"):
        (tmp_path / name).write_bytes(CSV)
    made = create(creator(fine_tunes), **first)
    data = fine_tunes.data(made.request.training_file)
    content = (CSV, "csv") if "rows" not in first else ('{"prompt":"ä"}\n'.encode(), "jsonl")
    assert (data.path.read_bytes(), data.form) == content
    # What the path has now does not matter.
    (tmp_path / "inbox" / "a.csv").unlink()
    assert create(creator(fine_tunes), **first).request == made.request
    with pytest.raises(Conflict):
        create(creator(fine_tunes), **other)


@pytest.fixture
async def serve() -> AsyncGenerator[Serve, None]:
    """A host of the internet, which lies at 127.0.0.9 here."""
    answers: dict[str, Any] = {}

    async def answer(request: web.Request) -> web.Response:
        body, type_ = answers[request.path]
        return web.Response(body=body, content_type=type_) if type_ else await body(request)

    app = web.Application()
    app.router.add_get("/{tail:.*}", answer)
    async with TestServer(app, host="127.0.0.9") as server:

        def serve(name: str, body: Any, type_: str = "") -> str:
            answers[f"/{name}"] = body, type_
            return f"http://host.example:{server.port}/{name}?secret=word"

        yield serve


def fetching(fine_tunes: FineTunes) -> Creator:
    fetcher = Fetcher(
        resolver=lambda: Names({"host.example": [["127.0.0.9"]]}),
        allows=lambda address: address == "127.0.0.9",
        types=ROWS,
    )
    return Creator(fine_tunes, MODEL, Sources(fine_tunes.files, fetcher))


async def test_a_file_may_be_fetched_once(fine_tunes: FineTunes, serve: Serve) -> None:
    by, url = fetching(fine_tunes), serve("rows.csv", CSV, "application/octet-stream")
    made = await asyncio.to_thread(create, by, training_file=url)
    file = fine_tunes.files.get(made.request.training_file)
    assert fine_tunes.files.content(file).read_bytes() == CSV
    assert (file.filename, file.purpose) == ("rows.csv", "fine-tune")
    again = await asyncio.to_thread(create, by, training_file="http://host.example/gone")
    assert again.request == made.request
    files = [path for path in fine_tunes.volume.root.rglob("*") if path.is_file()]
    assert b"secret" not in b"".join(path.read_bytes() for path in files)


async def test_slow_hosts_hold_two_own_threads(fine_tunes: FineTunes, serve: Serve) -> None:
    arrived, release = asyncio.Queue[str](), asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        await arrived.put(request.path)
        await release.wait()
        return web.Response(body=CSV, content_type="text/csv")

    def begin(number: int, **asked: Any) -> asyncio.Task[FineTune]:
        id, spec = ids.derived(FineTunes.prefix, str(number)), FineTuneSpec.of_body(asked)
        return asyncio.create_task(fetching(fine_tunes).acreate(spec, id))

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    tasks = [begin(number, training_file=serve("slow.csv", slow)) for number in range(3)]
    await arrived.get()
    await arrived.get()
    await begin(3, rows=[{"prompt": "a", "response": "b"}])
    assert (arrived.empty(), [task.done() for task in tasks]) == (True, [False] * 3)
    release.set()
    await asyncio.gather(*tasks)


async def test_an_address_has_rows_and_not_too_many(fine_tunes: FineTunes, serve: Serve) -> None:
    page = serve("page", b"<html>", "text/html")
    error = await asyncio.to_thread(refused, fetching(fine_tunes), training_file=page)
    assert "does not say that it is CSV or JSONL" in error.message
    large = serve("large.csv", b"a" * 1_000_001, "text/csv")
    error = await asyncio.to_thread(refused, fetching(fine_tunes), training_file=large)
    assert (type(error), error.param) == (InputTooLarge, "training_file")
    assert not fine_tunes.files.list().data


@pytest.mark.parametrize(
    ("hosts", "url", "message"),
    [
        ((), "http://169.254.169.254/latest/meta-data", "no address on the public internet"),
        (("other.example",), "https://example.com/rows.csv", "ALLOWED_MEDIA_DOMAINS"),
    ],
)
async def test_an_address_inside_and_one_that_is_not_allowed_are_never_asked(
    fine_tunes: FineTunes, hosts: tuple[str, ...], url: str, message: str
) -> None:
    by = Creator.of(fine_tunes, replace(MODEL, hosts=hosts), settings())
    error = await asyncio.to_thread(refused, by, training_file=url)
    assert message in error.message
