"""Prints the states of a job by a generated client, which connects again: python openapi_follow.py DIRECTORY URL TOKEN.

The generated functions return whole answers, so a program takes the path of a stream from them, and the client's connection.
"""

# ruff: noqa: T201 - it prints what the test compares

import json
import sys
import time

import httpx

directory, url, token = sys.argv[1:]
sys.path.insert(0, directory)

from mainspring_client import AuthenticatedClient  # noqa: E402
from mainspring_client.api.jobs import jobs_stream, jobs_submit  # noqa: E402
from mainspring_client.models import NewJob  # noqa: E402

with AuthenticatedClient(base_url=url, token=token) as client:
    job = jobs_submit.sync("default", client=client, body=NewJob(function="resize"))
    print(job.handle, flush=True)
    path = jobs_stream._get_kwargs("default", job.handle)["url"]  # noqa: SLF001 - see above
    is_over = False
    while not is_over:
        try:
            with client.get_httpx_client().stream("GET", path, timeout=30) as response:
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        print(json.loads(line.removeprefix("data: "))["state"], flush=True)
            is_over = True
        except httpx.TransportError:
            time.sleep(0.05)  # the node starts
print("the end")
