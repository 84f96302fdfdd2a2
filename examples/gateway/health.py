"""The endpoint's health once a minute: its jobs, and its workers by their states.

The metrics of workers contain neither the platform's queue nor the starts of workers. A line ends
with ALERT if jobs have waited at five polls in succession; pass it on to the people on call.

RUNPOD_ENDPOINT_ID is the endpoint's id, RUNPOD_API_KEY the account's key. The arguments are the
seconds between two polls, and the number of polls; without them, 60 and no limit.
"""

import json
import os
import sys
import time
import urllib.request
from itertools import count

base_url = os.environ.get("RUNPOD_ENDPOINT_BASE_URL", "https://api.runpod.ai/v2")
request = urllib.request.Request(
    f"{base_url}/{os.environ['RUNPOD_ENDPOINT_ID']}/health",
    headers={"Authorization": f"Bearer {os.environ['RUNPOD_API_KEY']}", "User-Agent": "health.py"},
)
seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60
last = int(sys.argv[2]) if len(sys.argv) > 2 else None
polls_with_queue = 0

for poll in count(1):
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            health = json.load(response)
    except (OSError, ValueError) as error:
        text = f"no answer: {error}"
    else:
        jobs, workers = health["jobs"], health["workers"]
        polls_with_queue = polls_with_queue + 1 if jobs["inQueue"] else 0
        text = f"queue={jobs['inQueue']} running={jobs['inProgress']} failed={jobs['failed']}"
        states = [f"{state}={number}" for state, number in workers.items() if number]
        text += f" workers: {' '.join(states) or 'none'}"
        text += " ALERT" * (polls_with_queue >= 5)
    print(time.strftime("%H:%M:%S"), text, flush=True)
    if poll == last:
        break
    time.sleep(seconds)
