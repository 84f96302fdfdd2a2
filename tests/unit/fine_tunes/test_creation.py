"""Creating fine-tunes: of which model, of which rows, and what is refused by name."""

import asyncio
import importlib.util
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from support.engine.scripted import settings
from support.internet import Names

from worker.engine import Model
from worker.errors import Conflict, InputTooLarge, InvalidInput, NoSuchObject, RequestError
from worker.fine_tunes.creation import Creator
from worker.fine_tunes.sources import ROWS, Sources
from worker.fine_tunes.state import FineTune
from worker.fine_tunes.store import PREFIX, FineTunes
from worker.job.fine_tune import FineTuneSpec
from worker.media.fetcher import Fetcher
from worker.volume import ids

CSV = b"prompt,response\na,b\n"
MODEL = Model(
    names=("demo", "also"),
    max_model_len=64,
    device="cpu",
    tasks=frozenset({"generate"}),
    source="tiny/demo",
    place=Path("demo"),
    max_lora_rank=16,
)
ID = ids.derived(PREFIX, "job-1")


@pytest.fixture
def fine_tunes(tmp_path: Path) -> FineTunes:
    (tmp_path / "inbox").mkdir()
    return FineTunes.of(settings(FILES_PATH=str(tmp_path), FILES_MAX_MB="1"))


def creator(fine_tunes: FineTunes, model: Model = MODEL, **more: Any) -> Creator:
    return Creator(fine_tunes, model, Sources(fine_tunes.files, None), **more)


def create(made_by: Creator, adapters: tuple[str, ...] = (), **asked: Any) -> FineTune:
    if not {"training_file", "training_path", "rows"} & asked.keys():
        asked["training_file"] = uploaded(made_by.fine_tunes)
    return made_by.create(FineTuneSpec.of_body(asked), ID, adapters=adapters)


def uploaded(fine_tunes: FineTunes, content: bytes = CSV) -> str:
    return fine_tunes.files.receive([content], filename="a.csv", purpose="fine-tune").id


def refused(made_by: Creator, **asked: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        create(made_by, **asked)
    assert not made_by.fine_tunes.all()
    return caught.value


def content(fine_tunes: FineTunes, file_id: str) -> bytes:
    return fine_tunes.files.content(fine_tunes.files.get(file_id)).read_bytes()


@pytest.mark.parametrize("name", [None, "demo", "also", "tiny/demo"])
def test_a_base_model_is_known_by_all_its_names(fine_tunes: FineTunes, name: str | None) -> None:
    assert create(creator(fine_tunes), model=name).request.base == "demo"


def test_what_was_asked_is_kept(fine_tunes: FineTunes) -> None:
    kept = create(
        creator(fine_tunes),
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}},
        seed=7,
        suffix="mine",
        metadata={"a": "b"},
    ).request
    assert (kept.spec.epochs, kept.seed, kept.suffix, kept.metadata) == (2, 7, "mine", {"a": "b"})
    assert (kept.method, kept.wandb) == ("supervised", None)


def test_an_adapter_is_no_base(fine_tunes: FineTunes) -> None:
    error = refused(creator(fine_tunes), model="mine", adapters=("mine",))
    assert error.param == "model"
    assert "'mine' is an adapter: a fine-tune begins with a base model, demo" in error.message


def test_an_unknown_model_is_refused_with_the_one_that_there_is(fine_tunes: FineTunes) -> None:
    error = refused(creator(fine_tunes), model="other")
    assert (error.param, error.status) == ("model", 400)
    assert "this worker has demo" in error.message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_lora_rank": None}, "its operator sets ENABLE_LORA=1"),
        ({"tasks": frozenset({"embed"})}, "it writes no text"),
        ({"quantization": "awq"}, "it is quantised"),
        ({"place": None}, "not read from a directory"),
    ],
)
def test_a_worker_that_could_not_serve_the_result_refuses(
    fine_tunes: FineTunes, changes: dict[str, Any], message: str
) -> None:
    assert message in refused(creator(fine_tunes, replace(MODEL, **changes))).message


def test_hyperparameters_are_named_where_they_stand(fine_tunes: FineTunes) -> None:
    given = {"n_epochs": 99}
    error = refused(creator(fine_tunes), hyperparameters=given)
    assert error.param == "hyperparameters.n_epochs"
    method = {"type": "supervised", "supervised": {"hyperparameters": given}}
    error = refused(creator(fine_tunes), method=method)
    assert error.param == "method.supervised.hyperparameters.n_epochs"


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"suffix": "a" * 65}, "suffix"),
        ({"suffix": ""}, "suffix"),
        *(({"suffix": suffix}, "suffix") for suffix in ("../x", "a b", "a.b", "ä", "a\n", "a/")),
        ({"seed": -1}, "seed"),
        ({"seed": "7"}, "seed"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
        ({"method": {"type": "dpo", "dpo": {}}}, "method.type"),
        ({"method": {"type": "reinforcement"}}, "method.type"),
        ({"method": {"type": "supervised", "dpo": {}}}, "method"),
        (
            {
                "hyperparameters": {},
                "method": {"type": "supervised", "supervised": {"hyperparameters": {}}},
            },
            "hyperparameters",
        ),
        ({"integrations": [{"type": "tensorboard"}]}, "integrations.0.type"),
        ({"n_epochs": 3}, "n_epochs"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(
    fine_tunes: FineTunes, asked: dict[str, Any], field: str
) -> None:
    assert refused(creator(fine_tunes), **asked).param == field


WANDB = [{"type": "wandb", "wandb": {"project": "p", "tags": ["a"]}}]


def test_weights_and_biases_needs_its_package_and_a_key(fine_tunes: FineTunes) -> None:
    there = importlib.util.find_spec("wandb") is not None
    error = refused(creator(fine_tunes, wandb_key=not there), integrations=WANDB)
    assert error.param == "integrations"
    assert ("WANDB_API_KEY" if there else "no package wandb") in error.message


def test_the_file_may_be_one_on_the_volume(fine_tunes: FineTunes, tmp_path: Path) -> None:
    (tmp_path / "inbox" / "rows.csv").write_bytes(CSV)
    for field in ("training_file", "training_path"):
        asked: dict[str, Any] = {field: "inbox/rows.csv"}
        made = create(creator(fine_tunes), **asked)
        assert content(fine_tunes, made.request.training.file_id) == CSV


def test_the_rows_may_come_with_the_job(fine_tunes: FineTunes) -> None:
    made = create(creator(fine_tunes), rows=[{"prompt": "ä", "response": "b"}])
    rows = content(fine_tunes, made.request.training.file_id)
    assert rows.decode() == '{"prompt":"ä","response":"b"}\n'
    assert fine_tunes.data(made.request.training).form == "jsonl"


@pytest.mark.parametrize("field", ["training_file", "validation_file"])
@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("file-nothing", NoSuchObject),
        ("nothing.csv", InvalidInput),
        ("../../etc/passwd", InvalidInput),
        ("worker/files", InvalidInput),
        ("https://example.com/rows.csv", InvalidInput),
    ],
)
def test_a_file_that_is_not_to_be_had_is_refused_by_the_field(
    fine_tunes: FineTunes, field: str, given: str, error: type[RequestError]
) -> None:
    found = refused(creator(fine_tunes), **{field: given})
    assert isinstance(found, error)
    assert (found.param, found.message.partition(":")[0]) == (field, field)


def test_the_same_request_finds_what_it_has_made_whatever_the_path_has_now(
    fine_tunes: FineTunes, tmp_path: Path
) -> None:
    (tmp_path / "inbox" / "rows.csv").write_bytes(CSV)
    made = create(creator(fine_tunes), training_file="inbox/rows.csv")
    (tmp_path / "inbox" / "rows.csv").unlink()
    assert create(creator(fine_tunes), training_file="inbox/rows.csv").request == made.request
    with pytest.raises(Conflict):
        create(creator(fine_tunes), training_file="inbox/rows.csv", suffix="other")


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ({"training_file": "inbox/a.csv"}, {"training_file": "inbox/b.csv"}),
        ({"training_path": "inbox/a.csv"}, {"training_path": "inbox/b.csv"}),
        ({"rows": [{"prompt": "a"}]}, {"rows": [{"prompt": "b"}]}),
        ({"rows": [{"prompt": "a"}]}, {"training_file": "inbox/a.csv"}),
        (
            {"training_file": "inbox/a.csv"},
            {"training_file": "inbox/a.csv", "validation_file": "inbox/b.csv"},
        ),
    ],
)
def test_other_rows_under_the_same_id_are_refused(
    fine_tunes: FineTunes, tmp_path: Path, first: dict[str, Any], other: dict[str, Any]
) -> None:
    for name in ("inbox/a.csv", "inbox/b.csv"):
        (tmp_path / name).write_bytes(CSV)
    made = create(creator(fine_tunes), **first)
    assert create(creator(fine_tunes), **first).request == made.request
    with pytest.raises(Conflict):
        create(creator(fine_tunes), **other)


@pytest.fixture
async def host() -> AsyncGenerator[Any, None]:
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


@pytest.mark.parametrize("type_", ["text/csv", "text/plain", "application/octet-stream"])
async def test_a_file_may_be_fetched_from_an_address_once(
    fine_tunes: FineTunes, host: Any, type_: str
) -> None:
    url = host("rows.csv", CSV, type_)
    made = await asyncio.to_thread(create, fetching(fine_tunes), training_file=url)
    file = fine_tunes.files.get(made.request.training.file_id)
    assert content(fine_tunes, file.id) == CSV
    assert (file.filename, file.purpose) == ("rows.csv", "fine-tune")
    again = await asyncio.to_thread(
        create, fetching(fine_tunes), training_file="http://host.example/gone"
    )
    assert again.request == made.request
    assert b"secret" not in b"".join(
        path.read_bytes() for path in fine_tunes.volume.root.rglob("*") if path.is_file()
    )


async def test_slow_hosts_hold_two_threads_that_nobody_else_waits_for(
    fine_tunes: FineTunes, host: Any
) -> None:
    arrived, release = asyncio.Queue[str](), asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        await arrived.put(request.path)
        await release.wait()
        return web.Response(body=CSV, content_type="text/csv")

    def begin(number: int, **asked: Any) -> asyncio.Task[FineTune]:
        id, spec = ids.derived(PREFIX, str(number)), FineTuneSpec.of_body(asked)
        return asyncio.create_task(fetching(fine_tunes).acreate(spec, id))

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    tasks = [begin(number, training_file=host("slow.csv", slow)) for number in range(3)]
    await arrived.get()
    await arrived.get()
    await begin(3, rows=[{"prompt": "a", "response": "b"}])
    assert (arrived.empty(), [task.done() for task in tasks]) == (True, [False] * 3)
    release.set()
    await asyncio.gather(*tasks)


async def test_what_an_address_has_must_be_rows_and_not_too_large(
    fine_tunes: FineTunes, host: Any
) -> None:
    page = host("page", b"<html>", "text/html")
    error = await asyncio.to_thread(refused, fetching(fine_tunes), training_file=page)
    assert "does not say that it is CSV or JSONL" in error.message
    large = host("large.csv", b"a" * 1_000_001, "text/csv")
    error = await asyncio.to_thread(refused, fetching(fine_tunes), training_file=large)
    assert isinstance(error, InputTooLarge)
    assert error.param == "training_file"
    assert not fine_tunes.files.list().data


async def test_an_address_inside_is_never_asked(fine_tunes: FineTunes) -> None:
    asked = {"training_file": "http://169.254.169.254/latest/meta-data"}
    error = await asyncio.to_thread(refused, Creator.of(fine_tunes, MODEL, settings()), **asked)
    assert "no address on the public internet" in error.message


async def test_other_hosts_than_the_allowed_ones_are_never_asked(fine_tunes: FineTunes) -> None:
    made_by = Creator.of(fine_tunes, replace(MODEL, hosts=("other.example",)), settings())
    error = await asyncio.to_thread(refused, made_by, training_file="https://example.com/rows.csv")
    assert "ALLOWED_MEDIA_DOMAINS" in error.message
