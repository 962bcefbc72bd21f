"""Webhooks: their secrets are in no log, list or act, and nodes connect to no address that their settings do not permit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.system.servers import eventually, serving
from tests.system.test_webhooks import ALLOWED, Node
from tests.system.webhook_receivers import Receiver

if TYPE_CHECKING:
    from pathlib import Path

VALUE = "a-hidden-value-of-a-header"


def test_no_secret_of_a_webhook_is_in_a_log_a_list_or_the_audit(tmp_path: Path) -> None:
    with (
        Receiver(500) as receiver,
        serving(tmp_path, *ALLOWED, "--log-level", "debug", "--http", "127.0.0.1:0") as server,
    ):
        node = Node(server.port)
        try:
            secrets = [node.add(receiver, headers={"Authorization": f"Bearer {VALUE}"})["secret"]]
            node.cancels_one()
            eventually(lambda: [one["state"] for one in node.deliveries()] == ["scheduled"], "the attempt has failed")
            node.call("webhooks.test", name="crm")
            secrets.append(node.call("webhooks.rotate", name="crm")["secret"])
            node.call("webhooks.edit", name="crm", url=f"{receiver.url}/another?key=too")
            receiver.leave()
            node.call("webhooks.test", name="crm")
            (delivery,) = node.deliveries()
            node.call("webhooks.pause", name="crm")
            texts: dict[str, Any] = {
                "list": node.call("webhooks.list"),
                "audit": node.call("audit.list"),
                "events": node.call("events.list"),
                "jobs": node.call("jobs.list"),
                "job": node.call("jobs.show", handle=delivery["handle"]),
                "payload": node.call("jobs.arguments", handle=delivery["handle"]),
                "functions": node.call("functions.list"),
                "log": server.log_text(),
            }
            shown = str(node.call("webhooks.show", name="crm"))
            node.call("webhooks.remove", name="crm")
            texts["audit, later"] = node.call("audit.list")
        finally:
            node.client.close()
        assert "webhooks.rotate" in str(texts["audit"])
        for place, text in texts.items():
            found = [one for one in (*secrets, secrets[0][6:], VALUE, "a-secret-path") if one in str(text)]
            assert found == [], place
        assert VALUE not in shown
        assert not any(one in shown for one in secrets)
