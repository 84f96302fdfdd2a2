"""Creating fine-tunes: base models, sources of rows, and errors that name the field."""

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
from support.fine_tunes import CSV, upload_file
from support.network import TableResolver
from support.volume import all_records

from worker.engine import Model
from worker.errors import Conflict, InputTooLarge, InvalidInput, NoSuchObject, RequestError
from worker.fine_tunes.creation import ROW_TYPES, FineTuneCreator, model_directory
from worker.fine_tunes.record import FineTune, FineTunes
from worker.job.fine_tune import FineTuneSpec
from worker.media.fetcher import WebFetcher
from worker.volume import ids

TEXT = frozenset({"generate"})
MODEL = Model(
    ("demo", "also"), 64, "cpu", TEXT, source="tiny/demo", directory=Path("demo"), max_lora_rank=16
)
Serve = Callable[..., str]


def make_creator(fine_tunes: FineTunes, model: Model = MODEL, **more: Any) -> FineTuneCreator:
    return FineTuneCreator(fine_tunes, model, None, **more)


def create(creator: FineTuneCreator, adapters: tuple[str, ...] = (), **body: Any) -> FineTune:
    if not {"training_file", "training_path", "rows"} & body.keys():
        body["training_file"] = upload_file(creator.fine_tunes)
    return creator.create(
        FineTuneSpec.from_body(body), ids.derive_id(FineTunes.id_prefix, "job-1"), adapters
    )


def creation_error(creator: FineTuneCreator, **body: Any) -> RequestError:
    with pytest.raises(RequestError) as exc_info:
        create(creator, **body)
    assert not all_records(creator.fine_tunes)
    return exc_info.value


@pytest.mark.parametrize("name", [None, "demo", "also", "tiny/demo"])
def test_a_fine_tune_accepts_every_name_of_its_base_model(
    fine_tunes: FineTunes, name: str | None
) -> None:
    assert create(make_creator(fine_tunes), model=name).request.base == "demo"
    # The path is absolute, so that a process in another directory finds the model.
    assert model_directory(MODEL) == Path.cwd() / "demo"


def test_a_fine_tune_stores_its_request(fine_tunes: FineTunes) -> None:
    method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}}
    values: dict[str, Any] = {"seed": 7, "suffix": "mine", "metadata": {"a": "b"}}
    request = create(make_creator(fine_tunes), method=method, **values).request
    assert {name: getattr(request, name) for name in values} == values
    assert (request.spec.epochs, request.method, request.wandb) == (2, "supervised", None)


@pytest.mark.parametrize(
    ("changes", "name", "message"),
    [
        ({"max_lora_rank": None}, None, "its operator has to set ENABLE_LORA=1"),
        ({"tasks": frozenset({"embed"})}, None, "it does not generate text"),
        ({"quantization": "awq"}, None, "it is quantised"),
        ({"directory": None}, None, "not read from a directory. MODEL_NAME has to"),
        ({}, "mine", "model: 'mine' is an adapter: a fine-tune begins with a base model, demo"),
        ({}, "other", "model: there is no base model 'other'; this worker has demo"),
    ],
)
def test_a_model_that_can_not_be_trained_or_served_is_refused(
    fine_tunes: FineTunes, changes: dict[str, Any], name: str | None, message: str
) -> None:
    error = creation_error(
        make_creator(fine_tunes, replace(MODEL, **changes)), model=name, adapters=("mine",)
    )
    assert (message in error.message, error.status) == (True, 400)
    assert error.param == (name and "model")


SUPERVISED = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 99}}}


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("hyperparameters.n_epochs", {"hyperparameters": {"n_epochs": 99}}),
        ("method.supervised.hyperparameters.n_epochs", {"method": SUPERVISED}),
        ("hyperparameters", {"hyperparameters": {}, "method": SUPERVISED}),
        ("method.type", {"method": {"type": "dpo", "dpo": {}}}),
        ("method.type", {"method": {"type": "reinforcement"}}),
        ("method", {"method": {"type": "supervised", "dpo": {}}}),
        ("suffix", {"suffix": "a" * 65}),
        *(
            ("suffix", {"suffix": suffix})
            for suffix in ("", "../x", "a b", "a.b", "ä", "a\n", "a/")
        ),
        ("seed", {"seed": -1}),
        ("seed", {"seed": "7"}),
        ("metadata", {"metadata": {"a": "b" * 513}}),
        ("integrations.0.type", {"integrations": [{"type": "tensorboard"}]}),
        ("n_epochs", {"n_epochs": 3}),
    ],
)
def test_a_wrong_value_is_refused_with_its_field(
    fine_tunes: FineTunes, field: str, body: dict[str, Any]
) -> None:
    assert creation_error(make_creator(fine_tunes), **body).param == field


def test_weights_and_biases_needs_its_package_and_a_key(fine_tunes: FineTunes) -> None:
    is_installed = importlib.util.find_spec("wandb") is not None
    wandb = [{"type": "wandb", "wandb": {"project": "p", "tags": ["a"]}}]
    error = creation_error(
        make_creator(fine_tunes, has_wandb_key=not is_installed), integrations=wandb
    )
    assert error.param == "integrations"
    assert ("WANDB_API_KEY" if is_installed else "no package wandb") in error.message


@pytest.mark.parametrize(
    ("filename", "form"), [("a.CSV", "csv"), ("b.jsonl", "jsonl"), ("c.txt", None), ("d", None)]
)
def test_the_form_of_the_rows_follows_from_the_file_name(
    fine_tunes: FineTunes, filename: str, form: str | None
) -> None:
    file = fine_tunes.files.receive([CSV], filename=filename, purpose="fine-tune")
    fine_tune = create(make_creator(fine_tunes), training_file=file.id)
    assert fine_tunes.locate_rows(fine_tune.request.training_file).form == form


@pytest.mark.parametrize("field", ["training_file", "validation_file"])
@pytest.mark.parametrize(
    ("name", "error_type"),
    [
        ("file-nothing", NoSuchObject),
        *(
            (path, InvalidInput)
            for path in ("nothing", "a.csv", "../../etc/passwd", "worker/files")
        ),
        ("https://example.com/rows.csv", InvalidInput),
        ("of another purpose", InvalidInput),
    ],
)
def test_an_unavailable_file_is_refused_with_its_field(
    fine_tunes: FineTunes, field: str, name: str, error_type: type[RequestError]
) -> None:
    if name == "of another purpose":
        name = upload_file(fine_tunes, purpose="batch")
    error = creation_error(make_creator(fine_tunes), **{field: name})
    assert isinstance(error, error_type)
    assert (error.param, error.message.partition(":")[0]) == (field, field)


FROM_FILE: dict[str, Any] = {"training_file": "inbox/a.csv"}
FROM_ROWS: dict[str, Any] = {"rows": [{"prompt": "ä"}]}


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (FROM_FILE, {"training_file": "inbox/b.csv"}),
        ({"training_path": "inbox/a.csv"}, {"training_path": "inbox/b.csv"}),
        (FROM_ROWS, {"rows": [{"prompt": "b"}]}),
        (FROM_ROWS, FROM_FILE),
        (FROM_FILE, {**FROM_FILE, "validation_file": "inbox/b.csv"}),
        (FROM_FILE, {**FROM_FILE, "suffix": "other"}),
    ],
)
def test_a_repeated_request_returns_its_fine_tune_and_another_request_is_refused(
    fine_tunes: FineTunes, tmp_path: Path, first: dict[str, Any], other: dict[str, Any]
) -> None:
    for name in ("inbox/a.csv", "inbox/b.csv"):
        (tmp_path / name).write_bytes(CSV)
    fine_tune = create(make_creator(fine_tunes), **first)
    data = fine_tunes.locate_rows(fine_tune.request.training_file)
    content = (CSV, "csv") if "rows" not in first else ('{"prompt":"ä"}\n'.encode(), "jsonl")
    assert (data.path.read_bytes(), data.form) == content
    # A repeated request doesn't read the path again.
    (tmp_path / "inbox" / "a.csv").unlink()
    assert create(make_creator(fine_tunes), **first).request == fine_tune.request
    with pytest.raises(Conflict):
        create(make_creator(fine_tunes), **other)


@pytest.fixture
async def serve() -> AsyncGenerator[Serve, None]:
    """Return a function that adds a page to a local web server and returns its URL."""
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


def make_fetching_creator(fine_tunes: FineTunes) -> FineTuneCreator:
    fetcher = WebFetcher(
        create_resolver=lambda: TableResolver({"host.example": [["127.0.0.9"]]}),
        is_allowed=lambda address: address == "127.0.0.9",
        types=ROW_TYPES,
    )
    return FineTuneCreator(fine_tunes, MODEL, fetcher)


async def test_a_url_is_fetched_only_once(fine_tunes: FineTunes, serve: Serve) -> None:
    creator = make_fetching_creator(fine_tunes)
    url = serve("rows.csv", CSV, "application/octet-stream")
    fine_tune = await asyncio.to_thread(create, creator, training_file=url)
    file = fine_tunes.files.get(fine_tune.request.training_file)
    assert fine_tunes.files.content_path(file).read_bytes() == CSV
    assert (file.filename, file.purpose) == ("rows.csv", "fine-tune")
    repeated = await asyncio.to_thread(create, creator, training_file="http://host.example/gone")
    assert repeated.request == fine_tune.request
    files = [path for path in fine_tunes.volume.root.rglob("*") if path.is_file()]
    assert b"secret" not in b"".join(path.read_bytes() for path in files)


async def test_slow_hosts_occupy_only_two_separate_threads(
    fine_tunes: FineTunes, serve: Serve
) -> None:
    requests, release = asyncio.Queue[str](), asyncio.Event()

    async def answer_late(request: web.Request) -> web.Response:
        await requests.put(request.path)
        await release.wait()
        return web.Response(body=CSV, content_type="text/csv")

    def start_creation(number: int, **body: Any) -> asyncio.Task[FineTune]:
        id, spec = ids.derive_id(FineTunes.id_prefix, str(number)), FineTuneSpec.from_body(body)
        return asyncio.create_task(make_fetching_creator(fine_tunes).create_in_thread(spec, id))

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    tasks = [
        start_creation(number, training_file=serve("slow.csv", answer_late)) for number in range(3)
    ]
    await requests.get()
    await requests.get()
    await start_creation(3, rows=[{"prompt": "a", "response": "b"}])
    assert (requests.empty(), [task.done() for task in tasks]) == (True, [False] * 3)
    release.set()
    await asyncio.gather(*tasks)


async def test_a_url_must_have_rows_within_the_size_limit(
    fine_tunes: FineTunes, serve: Serve
) -> None:
    page = serve("page", b"<html>", "text/html")
    error = await asyncio.to_thread(
        creation_error, make_fetching_creator(fine_tunes), training_file=page
    )
    assert "does not say that it is CSV or JSONL" in error.message
    large = serve("large.csv", b"a" * 1_000_001, "text/csv")
    error = await asyncio.to_thread(
        creation_error, make_fetching_creator(fine_tunes), training_file=large
    )
    assert (type(error), error.param) == (InputTooLarge, "training_file")
    assert not fine_tunes.files.list().data


@pytest.mark.parametrize(
    ("hosts", "url", "message"),
    [
        ((), "http://169.254.169.254/latest/meta-data", "no address on the public internet"),
        (("other.example",), "https://example.com/rows.csv", "ALLOWED_MEDIA_DOMAINS"),
    ],
)
async def test_private_addresses_and_hosts_that_are_not_allowed_are_never_requested(
    fine_tunes: FineTunes, hosts: tuple[str, ...], url: str, message: str
) -> None:
    creator = FineTuneCreator.from_settings(
        fine_tunes, replace(MODEL, media_hosts=hosts), settings()
    )
    error = await asyncio.to_thread(creation_error, creator, training_file=url)
    assert message in error.message
