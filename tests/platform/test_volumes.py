"""An endpoint with two network volumes: an object is on one, and both workers know on which."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from support import ROOT
from support.batches import lines, to_jsonl
from support.engine.scripted import CHAT, failure, settings
from support.fine_tunes import create_fine_tune
from support.models.lora import make_adapter
from support.processes.background import wait_until
from support.processes.commands import SCRIPT
from support.processes.servers import READY, LocalEndpoint, local_endpoint

from worker.fine_tunes.record import FineTunes

EUROPE, AMERICA = "euvolume01", "usvolume02"
CENTERS = {EUROPE: "EU-RO-1", AMERICA: "US-KS-2"}
VOLUMES = {"worker-1": EUROPE, "worker-2": AMERICA}
ADAPTER = f"demo.tuned.261126-190000.vol-{EUROPE}"
QUESTION = [{"role": "user", "content": "Hi"}]


class Crew:
    """Both workers of an endpoint, which share its queue but no volume."""

    def __init__(self, endpoint: LocalEndpoint, folder: Path) -> None:
        self.endpoint = endpoint
        self.folder = folder

    def ask_any(self, payload: dict[str, Any]) -> tuple[str, Any]:
        """Run a job; return the volume of its worker, and its yields or its error."""
        report = self.endpoint.call("runsync", {"input": payload})
        if report["status"] == "COMPLETED":
            return VOLUMES[report["workerId"]], report["output"]
        return VOLUMES[report["workerId"]], failure([{"error": report["error"]}])

    def ask_both(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Send a job until both workers have answered it; return their first answers."""
        answers: dict[str, Any] = {}

        def have_both_answered() -> bool:
            volume, answer = self.ask_any(payload)
            answers.setdefault(volume, answer)
            return len(answers) == 2

        wait_until(have_both_answered)
        return answers

    def ask_owner(self, home: str, subject: str, payload: dict[str, Any]) -> Any:
        """Return the answer of the worker on a volume; check that the other one names it."""
        answers = self.ask_both(payload)
        (away,) = {EUROPE, AMERICA} - {home}
        error = answers[away]
        assert (error["code"], error["retryable"]) == (503, True), answers
        here = f"{away} (data center {CENTERS[away]})"
        assert error["message"] == (
            f"The {subject} is on the network volume {home}, and this worker is on {here}. "
            "Send the request again: a worker on that volume can answer."
        )
        return answers[home]


@pytest.fixture(scope="module")
def crew(
    worker_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Crew]:
    folder = tmp_path_factory.mktemp("volumes")
    make_adapter(folder / EUROPE / "adapters" / ADAPTER, Path(worker_environ["MODEL_NAME"]))
    command = [sys.executable, "-m", "emulator", "--port", "0", "--logs", str(folder)]
    for id, center in CENTERS.items():
        command += ["--volume", f"{id}:{center}:{folder / id}"]
    command += ["--workers", "2", "--", sys.executable, "-u", str(SCRIPT)]
    more = {"ENABLE_LORA": "1", "MAX_LORA_RANK": "8", "BATCH_API_KEY": "local"}
    environ = {**worker_environ, **more, "PYTHONPATH": str(ROOT / "src")}
    with local_endpoint(command, environ, folder / "output") as endpoint:
        endpoint.wait_for_output("is ready after", times=2)
        endpoint.wait_for_output(READY)
        yield Crew(endpoint, folder)


def request(method: str, route: str, /, **body: Any) -> dict[str, Any]:
    return {"route": route, "method": method, **({"body": body} if body else {})}


pytestmark = pytest.mark.slow


CONTENT = to_jsonl(lines(2, messages=QUESTION, max_tokens=2)).decode()


def upload_input(crew: Crew) -> tuple[str, str]:
    """Upload the input of a batch; return its volume and its id."""
    upload = request("POST", "/v1/files", purpose="batch", filename="a.jsonl", content=CONTENT)
    home, (file,) = crew.ask_any(upload)
    return home, file["id"]


def test_a_file_is_found_on_its_volume_only(crew: Crew) -> None:
    home, file_id = upload_input(crew)
    subject = f"file {file_id}"
    assert file_id.endswith(f".vol-{home}")
    (found,) = crew.ask_owner(home, subject, request("GET", f"/v1/files/{file_id}"))
    assert (found["id"], found["bytes"]) == (file_id, len(CONTENT))
    contents = crew.ask_owner(home, subject, request("GET", f"/v1/files/{file_id}/content"))
    assert contents == [CONTENT]
    listed = crew.ask_both(request("GET", "/v1/files"))
    ids = {volume: {file["id"] for file in page["data"]} for volume, (page,) in listed.items()}
    assert {volume: file_id in found for volume, found in ids.items()} == {
        volume: volume == home for volume in CENTERS
    }
    (page,) = crew.ask_owner(
        home, f"object {file_id}", request("GET", f"/v1/files?after={file_id}")
    )
    assert page["data"] == []
    deleted = crew.ask_owner(home, subject, request("DELETE", f"/v1/files/{file_id}"))
    assert deleted == [{"id": file_id, "object": "file", "deleted": True}]


def test_a_batch_runs_on_its_volume_also_if_the_other_worker_takes_its_job(crew: Crew) -> None:
    home, file_id = upload_input(crew)
    create = request("POST", "/v1/batches", input_file_id=file_id, endpoint=CHAT)
    (batch,) = crew.ask_owner(home, f"file {file_id}", create)
    id, subject = batch["id"], f"batch {batch['id']}"
    assert id.endswith(f".vol-{home}")
    retrieve = request("GET", f"/v1/batches/{id}")

    def has_completed() -> bool:
        return bool(crew.ask_owner(home, subject, retrieve)[0]["status"] == "completed")

    # The worker that has created the batch has sent its job, which any worker may take.
    wait_until(has_completed)
    (batch,) = crew.ask_owner(home, subject, retrieve)
    assert batch["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    output = batch["output_file_id"]
    contents = crew.ask_owner(home, f"file {output}", request("GET", f"/v1/files/{output}/content"))
    assert "custom_id" in contents[0]
    cancelled = crew.ask_owner(home, subject, request("POST", f"/v1/batches/{id}/cancel"))
    assert cancelled["code"] == 409
    (page,) = crew.ask_owner(home, f"object {id}", request("GET", f"/v1/batches?after={id}"))
    assert page["object"] == "list"
    passed_on: list[Any] = []

    def was_passed_on() -> bool:
        volume, (answer,) = crew.ask_any({"batch": {"id": id}})
        if volume != home:
            passed_on.append(answer)
        return bool(passed_on)

    wait_until(was_passed_on)
    assert passed_on[0]["batch"] == {"id": id}
    assert f"{subject} is on the network volume {home}" in passed_on[0]["passed_on"]


def test_a_fine_tune_is_found_on_its_volume_only(crew: Crew) -> None:
    environ = {"BASE_PATH": str(crew.folder / AMERICA), "RUNPOD_VOLUME_ID": AMERICA}
    id = create_fine_tune(FineTunes(settings(**environ))).id
    subject = f"fine-tuning job {id}"
    for route in (f"/v1/fine_tuning/jobs/{id}", f"/v1/llm/fine-tunes/{id}"):
        (found,) = crew.ask_owner(AMERICA, subject, request("GET", route))
        assert found["id"] == id
    events = request("GET", f"/v1/fine_tuning/jobs/{id}/events")
    assert crew.ask_owner(AMERICA, subject, events)[0]["object"] == "list"
    (cancelled,) = crew.ask_owner(
        AMERICA, subject, request("POST", f"/v1/fine_tuning/jobs/{id}/cancel")
    )
    assert cancelled["status"] == "cancelled"


def test_an_adapter_that_carries_its_volume_answers_there_only(crew: Crew) -> None:
    subject, chat = f"adapter {ADAPTER}", {"messages": QUESTION, "max_tokens": 2}
    used = [
        request("POST", CHAT, model=ADAPTER, **chat),
        {"messages": QUESTION, "model": ADAPTER, "sampling_params": {"max_tokens": 2}},
        {"prompt": "Hi", "lora": ADAPTER, "sampling_params": {"max_tokens": 2}},
    ]
    for payload in used:
        assert isinstance(crew.ask_owner(EUROPE, subject, payload), list)
    for route in (f"/v1/models/{ADAPTER}", f"/v1/llm/model-endpoints/{ADAPTER}"):
        assert crew.ask_owner(EUROPE, subject, request("GET", route))[0]["id"] == ADAPTER
    download = request("POST", "/v1/llm/model-endpoints/download", model_name=ADAPTER)
    assert crew.ask_owner(EUROPE, subject, download)["code"] == 400
    lists = crew.ask_both(request("GET", "/v1/models"))
    names = {volume: {card["id"] for card in page["data"]} for volume, (page,) in lists.items()}
    assert {volume: ADAPTER in found for volume, found in names.items()} == {
        EUROPE: True,
        AMERICA: False,
    }


def test_a_worker_names_its_volume_in_its_log_and_status(crew: Crew) -> None:
    for volume, (status,) in crew.ask_both({"openai_route": "/chat", "openai_input": None}).items():
        assert (status["network_volume"], status["data_center"]) == (volume, CENTERS[volume])
    for worker, volume in VOLUMES.items():
        log = (crew.folder / f"{worker}.log").read_text()
        assert f"is on the network volume {volume} (data center {CENTERS[volume]})" in log
        assert "set BATCH_API_KEY" not in log


def test_names_without_a_volume_are_unknown_on_both(crew: Crew) -> None:
    for route in ("/v1/files/file-x", "/v1/batches/batch_x", f"/v1/files/file-x.vol-{EUROPE}"):
        for error in crew.ask_both(request("GET", route)).values():
            assert (error["code"], error["retryable"]) == (404, False)
    chat = request("POST", CHAT, model="nope", messages=QUESTION)
    for volume, error in crew.ask_both(chat).items():
        assert error["code"] == 404
        assert f"network volume {volume} (data center {CENTERS[volume]})" in error["message"]
    upload = {"path": f"s3://{EUROPE}/inbox/none", "purpose": "batch"}
    error = crew.ask_owner(EUROPE, f"path {upload['path']}", request("POST", "/v1/files", **upload))
    assert error["code"] == 400


def test_a_client_that_retries_gets_the_answer(crew: Crew) -> None:
    with openai.OpenAI(base_url=crew.endpoint.openai_url, api_key="any", max_retries=20) as client:
        for _ in range(3):
            completion = client.chat.completions.create(
                model=ADAPTER, messages=[{"role": "user", "content": "Hi"}], max_tokens=2
            )
            assert completion.model == ADAPTER
            assert client.models.retrieve(ADAPTER).id == ADAPTER
