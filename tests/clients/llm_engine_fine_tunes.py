"""Fine-tunes with Scale LLM Engine's client: `python -m clients.llm_engine_fine_tunes`.

In the current directory it writes the rows that it uploads.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from clients.llm_engine_refusals import refused
from llmengine import Completion, File, FineTune, Model

PROMPT = "What is the code of item 3?"
ENDED = ("SUCCESS", "FAILURE", "CANCELLED")
PATIENCE_S = 300
ROWS = Path("rows.csv")


def text(model: str) -> str:
    written: str = Completion.create(
        model=model, prompt=PROMPT, max_new_tokens=8, temperature=0.0
    ).output.text
    return written


def ended(id: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while (found := FineTune.get(id)).status.value not in ENDED:
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
    return found


def trained(file: str) -> dict[str, Any]:
    id = FineTune.create(
        model="demo",
        training_file=file,
        validation_file=file,
        hyperparameters={"epochs": "3", "lr": "0.002", "peft_config": {"r": 8}},
        suffix="my-experiment",
    ).id
    found = ended(id)
    assert found.fine_tuned_model, FineTune.get_events(id)
    names = [model.name for model in Model.list().model_endpoints]
    return {
        "id": id,
        "found": json.loads(found.json()),
        "events": json.loads(FineTune.get_events(id).json())["events"],
        "listed": [job.id for job in FineTune.list().jobs],
        "models": names,
        "texts": {name: text(name) for name in ("demo", found.fine_tuned_model)},
        "late cancel": FineTune.cancel(id).success,
        "deleted": [Model.delete(name).deleted for name in names if name.startswith("demo.")],
    }


def cancelled(file: str) -> dict[str, Any]:
    id = FineTune.create(model="demo", training_file=file, hyperparameters={"epochs": 19}).id
    return {"success": FineTune.cancel(id).success, "status": ended(id).status.value}


def main() -> None:
    rows = "".join(f"What is the code of item {number}?,The red code.\n" for number in range(60))
    ROWS.write_text(f"prompt,response\n{rows}")
    with ROWS.open("rb") as opened:
        file = File.upload(opened).id
    answers = {
        "trained": trained(file),
        "cancelled": cancelled(file),
        "no file": refused(lambda: FineTune.create(model="demo", training_file="file-none")),
        "no name": refused(
            lambda: FineTune.create(model="demo", training_file=file, hyperparameters={"epoch": 3})
        ),
    }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
