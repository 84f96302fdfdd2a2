"""Adapters by links with LLM Engine's client: `python -m clients.llm_engine_downloads ADAPTER`.

With a second argument: what it is refused with where there are no links.
"""

import json
import sys
from typing import Any

import requests
from clients.llm_engine_refusals import refused
from llmengine import Model

FETCHED_S = 60


def fetched(url: str) -> dict[str, Any]:
    """Open a link as anybody can, without a key."""
    answer = requests.get(url, timeout=FETCHED_S)
    return {"status": answer.status_code, "hex": answer.content.hex()}


def changed(url: str) -> list[str]:
    """Return the link with each of its parts changed, one at a time."""
    address, _, query = url.partition("?")
    pairs = [pair.partition("=") for pair in query.split("&")]
    links = [address, address.replace("adapter_config.json", "adapter_model.safetensors")]
    links = [links[0], f"{links[1]}?{query}"]
    for place, (name, _, value) in enumerate(pairs):
        last = "1" if value[-1:] != "1" else "2"
        others = [f"{one}={was}" for at, (one, _, was) in enumerate(pairs) if at != place]
        links.append(f"{address}?{'&'.join([*others, f'{name}={value[:-1]}{last}'])}")
    return links


def main(adapter: str, without_links: str = "") -> None:
    if without_links:
        json.dump(refused(lambda: Model.download(adapter)), sys.stdout)
        return
    urls = Model.download(adapter).urls
    config = urls["adapter_config.json"]
    answers: dict[str, Any] = {
        "again": sorted(Model.download(adapter, download_format="hugging_face").urls),
        "files": {name: fetched(url) for name, url in urls.items()},
        "changed": [(url, fetched(url)) for url in changed(config)],
        "base": refused(lambda: Model.download("demo")),
        "format": refused(lambda: Model.download(adapter, download_format="gguf")),
        "deleted": Model.delete(adapter).deleted,
    }
    json.dump({**answers, "link": fetched(config)["status"]}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
