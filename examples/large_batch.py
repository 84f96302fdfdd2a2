"""A batch with an input file of any size, which is uploaded through the volume's S3 API.

    python examples/large_batch.py requests.jsonl answers.jsonl

Needs `openai` and `llm-worker-client[volume]`. In addition to RUNPOD_ENDPOINT_ID and
RUNPOD_API_KEY, RUNPOD_VOLUME_ID and RUNPOD_VOLUME_DATACENTER name the endpoint's volume, and
AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY contain an S3 API key.
"""

import os
import sys
import time
from pathlib import Path

import httpx2
import openai
from openai.types import FileObject

from llm_worker_client import RunpodTransport
from llm_worker_client.volume import open_volume

requests, answers = sys.argv[1:]
key = f"inbox/{Path(requests).name}"
with open_volume() as volume:
    # After an interruption, the next run of this script resumes the upload.
    volume.upload(requests, key, progress=True)

transport = RunpodTransport(os.environ["RUNPOD_ENDPOINT_ID"])
http_client = httpx2.Client(transport=transport, timeout=300)
with openai.OpenAI(api_key="unused", http_client=http_client) as client:
    file = client.post("/files", body={"path": key, "purpose": "batch"}, cast_to=FileObject)
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(2)
        batch = client.batches.retrieve(batch.id)
    print(batch.status, batch.request_counts)
    client.files.content(batch.output_file_id or "").write_to_file(answers)
