"""LLM Engine's classes: a completion, complete and streamed, a file, and the models.

RUNPOD_ENDPOINT_ID is the endpoint's id, RUNPOD_API_KEY your account's key.
"""

import tempfile
from pathlib import Path
from typing import Any

from llm_worker_client import Completion, File, Model

models = [model.name for model in Model.list().model_endpoints]
print("models:", ", ".join(models))

whole: Any = Completion.create(
    model=models[0], prompt="Once upon a time", max_new_tokens=10, temperature=0
)
print("whole:", whole.output.text)
stream: Any = Completion.create(
    model=models[0], prompt="Once upon a time", max_new_tokens=10, temperature=0, stream=True
)
print("streamed:", "".join(event.output.text for event in stream if event.output))

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "rows.csv")
    path.write_text("prompt,response\nWhat colour is a token?,Green.\n")
    with path.open("rb") as file:
        id = File.upload(file).id
print("file:", File.get(id).filename, File.download(id).content.count("\n"), "lines")
print("deleted:", File.delete(id).deleted)
