"""Uses a client that was generated from the OpenAPI file of a node: python openapi_client.py DIRECTORY URL TOKEN."""

# ruff: noqa: T201 - it prints what the test compares

import sys

directory, url, token = sys.argv[1:]
sys.path.insert(0, directory)

from mainspring_client import AuthenticatedClient  # noqa: E402
from mainspring_client.api.jobs import jobs_cancel, jobs_list, jobs_show, jobs_submit  # noqa: E402
from mainspring_client.models import Document, JobsCancelBody, NewJob  # noqa: E402

with AuthenticatedClient(base_url=url, token=token) as client:
    job = jobs_submit.sync("default", client=client, body=NewJob(function="resize", args=[1, "two"]))
    print("submitted", job.handle.startswith("H:"))
    shown = jobs_show.sync("default", job.handle, client=client)
    print("shown", shown.function, shown.state, shown.created_at is not None)
    page = jobs_list.sync("default", client=client, function="resize", limit=1)
    print("listed", [one.handle == job.handle for one in page.items])
    cancelled = jobs_cancel.sync("default", job.handle, client=client, body=JobsCancelBody(reason="enough"))
    print("cancelled", cancelled.state)
    refused = jobs_show.sync("default", "H:none:1", client=client)
    print("refused", isinstance(refused, Document) and refused.status)
