"""`deploy apply`, against a platform that validates requests by its published schema."""

from pathlib import Path
from typing import Any

import pytest
from support.runpod_api.endpoints import volume, worker
from support.runpod_api.server import Fault, Runpod
from unit.client.deploy.conftest import FLAGS, Run

SETTINGS = ("--settings", "MODEL_NAME=org/model", "HF_TOKEN={{ RUNPOD_SECRET_hf }}")
OLD_CUDA = {"allowedCudaVersions": ["12.8"], "minCudaVersion": None}
NEW_CUDA = {"allowedCudaVersions": [], "minCudaVersion": "13.0"}
POOLS = {"pools": ["ADA_24", "AMPERE_24"], "count": 1}


def test_an_endpoint_is_created_with_the_workers_defaults(run: Run, runpod: Runpod) -> None:
    answer = {"choices": [{"message": {"role": "assistant", "content": "Hi there!"}}]}
    runpod.result = {"status": "COMPLETED", "workerId": "w1", "output": [answer]}
    status, out, err = run("apply", *FLAGS, *SETTINGS)
    assert (status, out) == (0, "ep1\n"), err
    (created,) = runpod.endpoints.values()
    assert (created["flashboot"], created["timeout"]) == ("FLASHBOOT", 600_000)
    assert created["gpu"]["minCudaVersion"] == "13.0"
    assert created["workers"] == {"min": 0, "max": 3, "idleTimeout": 60}
    assert created["env"]["RUNPOD_INIT_TIMEOUT"] == "1200"
    assert "workers: 1 initializing" in err
    assert f"created: ep1, for OpenAI's clients {runpod.url}/queue/ep1/openai/v1\n" in err
    assert "answered: Hi there!\n" in err


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ((), set()),
        (("--timeout-s", "900"), {"timeout", "env"}),
        (("--settings", "MAX_MODEL_LEN=8k"), {"env"}),
        (("--workers-max", "5"), {"workers", "scaling"}),
        (("--request-count", "32"), {"workers", "scaling"}),
        (("--gpu-count", "2"), {"gpu"}),
        (("--volumes", "vol1", "--data-centers", "US-KS-2"), {"networkVolumes", "dataCenterIds"}),
        (("--image", "me/llm-worker:2"), {"image"}),
    ],
)
def test_a_second_run_patches_the_changes_and_a_third_changes_nothing(
    run: Run, runpod: Runpod, words: tuple[str, ...], changed: set[str]
) -> None:
    runpod.volumes = [volume("vol1", "US-KS-2")]
    run("apply", *FLAGS, *SETTINGS)
    runpod.calls.clear()
    status, _, err = run("apply", *FLAGS, *SETTINGS, *words)
    assert status == 0, err
    assert [(call.verb, call.path) for call in runpod.changes] == [
        ("PATCH", "/v2/serverless/ep1")
    ] * bool(changed)
    assert {key for call in runpod.changes for key in call.body} == changed
    runpod.calls.clear()
    status, out, err = run("apply", *FLAGS, *SETTINGS, *words)
    assert (status, out, err.splitlines()[-1]) == (0, "ep1\n", "nothing to change")
    assert [call.verb for call in runpod.calls] == ["GET"]


LOAD_BALANCER, CPU = {"type": "LOAD_BALANCER"}, {"gpu": None}
VOLUMES = "there is no vol2, only vol1 (my vol1, US-KS-2)"


@pytest.mark.parametrize(
    ("endpoints", "words", "status", "message"),
    [
        ([], ["--volumes", "vol2"], 2, VOLUMES),
        ([], ["--volumes", "vol1", "--data-centers", "EU-RO-1"], 2, "vol1 is in US-KS-2, which"),
        ([{}, {}], [], 1, "ep1, ep2"),
        ([LOAD_BALANCER], [], 2, "another kind"),
        ([CPU], [], 2, "another kind"),
    ],
    ids=[
        "unknown volume",
        "volume in another data center",
        "duplicate name",
        "load balancer",
        "no GPU",
    ],
)
def test_an_impossible_plan_is_refused_and_changes_nothing(
    run: Run, runpod: Runpod, endpoints: list[Any], words: list[str], status: int, message: str
) -> None:
    runpod.volumes = [volume("vol1", "US-KS-2")]
    for one in endpoints:
        runpod.add(name="chat", scaling={"type": "REQUEST_COUNT", "requestCount": 4}, **one)
    found, _, err = run("apply", *FLAGS, *words)
    assert (found, runpod.changes, message in err) == (status, [], True)


def test_a_key_that_may_not_list_volumes_suffices(run: Run, runpod: Runpod) -> None:
    runpod.faults.append(Fault("GET", 403, path_end="/network-volumes"))
    assert run("apply", *FLAGS, "--volumes", "vol1", "--no-wait")[0] == 0


OTHER_FIELDS = {"registry": "reg", "args": "--serve", "networkVolumes": ["v"], "ports": ["1/http"]}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # Fields outside the plan stay.
        ({"name": "chat", **OTHER_FIELDS}, OTHER_FIELDS),
        # The platform itself appends this mark to names.
        ({"name": "chat -fb"}, {"name": "chat -fb"}),
        # A minimum version replaces the list.
        ({"name": "chat", "gpu": POOLS | OLD_CUDA}, {"gpu": POOLS | NEW_CUDA}),
    ],
    ids=["other fields", "a mark after the name", "listed CUDA versions"],
)
def test_an_endpoint_from_the_console_is_updated(
    run: Run, runpod: Runpod, before: dict[str, Any], after: dict[str, Any]
) -> None:
    runpod.add(**before)
    status, _, err = run("apply", *FLAGS, "--no-wait")
    assert status == 0, err
    (endpoint,) = runpod.endpoints.values()
    assert {key: endpoint[key] for key in after} == after


def test_flags_override_the_plan_in_a_file(run: Run, runpod: Runpod, tmp_path: Path) -> None:
    file = tmp_path / "endpoint.yaml"
    file.write_text(
        "name: chat\nimage: me/llm-worker:1-cu129\ngpu_pools: [ADA_80_PRO]\nflashboot: off\n"
        "settings: {MODEL_NAME: org/model, MAX_MODEL_LEN: 4096, ENFORCE_EAGER: true}\n"
    )
    assert run("apply", "-f", file, "--settings", "MAX_MODEL_LEN=8k", "--no-wait")[0] == 0
    (endpoint,) = runpod.endpoints.values()
    assert (endpoint["flashboot"], endpoint["gpu"]["minCudaVersion"]) == ("OFF", "12.9")
    settings = {"MODEL_NAME": "org/model", "MAX_MODEL_LEN": "8k", "ENFORCE_EAGER": "1"}
    assert endpoint["env"] == settings | {"RUNPOD_INIT_TIMEOUT": "1200"}


def test_apply_waits_for_workers_of_the_new_version(run: Run, runpod: Runpod) -> None:
    runpod.add(name="chat")
    runpod.workers.append(worker("old", "IDLE", stale=True))
    status, _, err = run("apply", *FLAGS, *SETTINGS)
    assert status == 0, err
    paths = [call.path for call in runpod.calls]
    first_run = next(place for place, path in enumerate(paths) if path.endswith("/run"))
    assert sum(path.endswith("/workers") for path in paths[:first_run]) == 2


def test_the_first_request_to_a_pooling_model_is_for_an_embedding(run: Run, runpod: Runpod) -> None:
    assert run("apply", *FLAGS, "--settings", "MODEL_NAME=a/b", "RUNNER=pooling")[0] == 0
    (sent,) = (call.body for call in runpod.calls if call.path.endswith("/run"))
    assert sent["input"]["openai_route"] == "/v1/embeddings"
