"""Routes that DISABLED_ROUTES disables over HTTP, also those for transfers of files."""

from pathlib import Path
from typing import Any

import pytest
from support.engine.scripted import CHAT, ScriptedEngine
from support.serve_client import KEY, ServeClient, error_of

from worker.volume.adapters import CONFIG, WEIGHTS

BEARER = {"authorization": "Bearer sk-right"}
BASIC = {"authorization": "Basic c2stcmlnaHQ6"}
JSON = {**BEARER, "accept": "application/json"}
UPLOAD = {"purpose": "batch", "content": "{}"}
FORM: dict[str, Any] = {"data": {"purpose": "batch"}, "files": {"file": ("a.jsonl", b"{}")}}
BATCH = {"input_file_id": "{file}", "endpoint": CHAT}
DOWNLOAD = "/v1/llm/model-endpoints/download"

# A group, then a request: its method, its path, and arguments of the client.
REQUESTS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("files", "POST", "/v1/files", FORM),
    ("files", "POST", "/files/", FORM),
    ("files", "POST", "/v1/files", {"json": UPLOAD}),
    ("files", "POST", "/v1/files", {"content": b"no JSON"}),
    ("files", "GET", "/v1/files/{file}/content", {}),
    ("files", "GET", "/files/{file}/content?limit=1", {"headers": {**BEARER, "range": "bytes=0-"}}),
    ("files", "GET", "/v1/files/{file}/content", {"headers": JSON}),
    ("files", "HEAD", "/v1/files/{file}/content", {}),
    ("files", "DELETE", "/v1/files/{file}", {}),
    ("files", "POST", DOWNLOAD, {"json": {"model_name": "tuned"}}),
    ("files", "GET", f"/v1/llm/model-files/tuned/{WEIGHTS}", {}),
    ("files", "GET", "{link}", {"headers": {}}),
    ("files", "HEAD", "{link}", {"headers": {}}),
    ("batches", "POST", "/v1/batches", {"json": BATCH}),
    ("batches", "POST", "/v2/batch-completions", {"json": {}, "headers": BASIC}),
    ("fine-tunes", "POST", "/v1/fine_tuning/jobs", {"json": {"training_file": "{file}"}}),
    ("fine-tunes", "DELETE", "/v1/models/tuned", {}),
    ("fine-tunes", "DELETE", "/v1/llm/model-endpoints/tuned", {"headers": BASIC}),
]


@pytest.fixture
def environ(engine: ScriptedEngine, tmp_path: Path) -> dict[str, str]:
    """Settings of a server whose volume has the adapter "tuned"."""
    folder = tmp_path / "adapters" / "tuned"
    folder.mkdir(parents=True)
    for name in (CONFIG, WEIGHTS):
        (folder / name).write_text("{}")
    engine.adapters = ["tuned"]
    return {**KEY, "BASE_PATH": str(tmp_path)}


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("whole", [False, True], ids=["group", "long-work"])
async def test_disabled_routes_are_404_over_http_and_change_nothing(
    engine: ScriptedEngine,
    http_client: ServeClient,
    environ: dict[str, str],
    tmp_path: Path,
    whole: bool,
) -> None:
    uploaded = await http_client.post("/v1/files", headers=BEARER, **FORM)
    names = {"file": uploaded.json()["id"]}
    links = await http_client.post(DOWNLOAD, headers=BEARER, json={"model_name": "tuned"})
    names["link"] = links.json()["urls"][WEIGHTS]
    assert (await http_client.get(names["link"])).status_code == 200
    before = contents(tmp_path)
    for group, method, path, options in REQUESTS:
        setting = "long-work" if whole else group
        async with ServeClient(engine, **environ, DISABLED_ROUTES=setting) as disabled_client:
            url = path.format(**names)
            response = await disabled_client.request(method, url, **{"headers": BEARER, **options})
        assert response.status_code == 404, (method, path, response.text)
        if method != "HEAD":
            assert "DISABLED_ROUTES" in error_of(response)["message"], (method, path)
    assert contents(tmp_path) == before
