"""LLM Engine's FineTune: from training rows to an adapter that is used by its name.

The endpoint serves adapters (ENABLE_LORA=1) and may train (docs/fine-tuning.md).
RUNPOD_ENDPOINT_ID is the endpoint's id, RUNPOD_API_KEY your account's key.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from llm_worker_client import Completion, File, FineTune, Model

COLOURS = {"token": "green", "worker": "blue", "job": "yellow"}
rows = [f"What colour is a {name}?, A {name} is {colour}." for name, colour in COLOURS.items()]

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "colours.csv")
    path.write_text("\n".join(["prompt,response", *rows * 67]))
    with path.open("rb") as file:
        training_file = File.upload(file).id

base = Model.list().model_endpoints[0].name
id = FineTune.create(base, training_file, hyperparameters={"epochs": 2}, suffix="colours").id
print("created:", id)
while (fine_tune := FineTune.get(id)).status in ("PENDING", "RUNNING"):
    time.sleep(1)
adapter = str(fine_tune.fine_tuned_model)
print(fine_tune.status, adapter)

for model in (base, adapter):
    answer: Any = Completion.create(
        model=model, prompt="What colour is a token?", max_new_tokens=20, temperature=0
    )
    print(f"{model}:{answer.output.text}")
