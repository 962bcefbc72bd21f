"""A client that runs an operation on all jobs of a function; run by `bulk.py`.

    python bulk_client.py ACTION FUNCTION      (the server is in MAINSPRING_SERVER)

It prints one line of JSON: the seconds until the operation has ended, and the number of jobs by outcome.
"""

from __future__ import annotations

import json
import os
import sys
import time

from mainspring.client.blocking import Client
from mainspring.client.environment import parse_servers


def main(action: str, function: str) -> None:
    client = Client(parse_servers(os.environ["MAINSPRING_SERVER"]))
    began = time.monotonic()
    begun = client.call("operations.start", {"action": action, "filter": {"function": function}})
    while (operation := client.call("operations.show", {"id": begun["id"]}))["state"] == "running":
        time.sleep(0.1)
    print(json.dumps({"seconds": time.monotonic() - began, "outcomes": operation["outcomes"]}))
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
