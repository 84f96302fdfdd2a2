"""Files and batches with versions of OpenAI's client, over HTTP and in front of an endpoint."""

from collections.abc import Iterator

import pytest
from support.processes.http_worker import KEY, http_worker
from support.processes.openai_clients import NEWEST, PROXY, SERVE, TRANSPORT, Host, reached

BEGINS = "This worker turns a Hugging Face model"


@pytest.fixture(scope="module", params=[SERVE, PROXY, TRANSPORT])
def host(
    request: pytest.FixtureRequest,
    worker_environ: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Host]:
    """Return a worker, or the local platform in front of one."""
    way: str = request.param
    folder = tmp_path_factory.mktemp("batches")
    if way != SERVE:
        with reached(way, request.getfixturevalue("make_endpoint"), folder / "log") as found:
            yield found
        return
    environ = {"SERVE_API_KEY": KEY, "FILES_PATH": str(folder / "volume")}
    with http_worker({**worker_environ, **environ}, folder / "log") as running:
        yield Host(way, running.url)


@pytest.mark.parametrize("version", ["1", "2", NEWEST])
def test_a_client_uploads_runs_lists_cancels_reads_and_deletes(version: str, host: Host) -> None:
    found = host.printed(version, "batches")
    sync = found["sync"]
    batch = sync["batch"]
    assert (batch["status"], batch["metadata"]) == ("completed", {"a": "b"})
    assert batch["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
    assert list(sync["answers"]) == [f"c{number}" for number in range(20)]
    assert all(text.startswith(BEGINS) for text in sync["answers"].values())
    assert sync["cancelling"] in {"cancelling", "cancelled"}
    assert (sync["cancelled"], sync["deleted"]) == ("cancelled", True)
    # By pages of one.
    assert set(sync["ids"]) <= set(sync["listed"])
    assert (sync["refusal"]["code"], sync["refusal"]["param"]) == (404, "batch_id")
    assert list(found["async"]["answers"]) == [f"c{number}" for number in range(5)]
    assert found["async"]["id"] in found["async"]["listed"]
