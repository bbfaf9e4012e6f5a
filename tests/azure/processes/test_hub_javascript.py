"""The unmodified client of npm (@azure/event-hubs) against a hub."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.support.azurite import installed, node
from tests.support.hub import running_hub

from leasehold.events import partition_of

SCRIPT = Path(__file__).parents[2] / "support" / "hub_js" / "roundtrip.js"


def test_the_client_of_npm_sends_and_receives(tmp_path: Path) -> None:
    with running_hub(tmp_path, partitions=2) as hub:
        done = subprocess.run(
            [node()[0], str(SCRIPT), hub.url()],
            env=os.environ | {"NODE_PATH": str(installed() / "node_modules")},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        seen = json.loads(done.stdout)
        assert seen["errors"] == []
        assert seen["partitions"] == ["0", "1"]
        first, partition = seen["first"], str(partition_of("k", 2))
        assert first["lastEnqueuedSequenceNumber"] == 99 + (partition == "0")

        received = [each for each in seen["received"] if each["partition"] == "0"]
        numbered = [each for each in received if isinstance(each["body"], dict)]
        assert [each["body"]["number"] for each in numbered] == list(range(100))
        assert numbered[3]["properties"] == {"half": 1.5, "name": "n3"}
        [keyed] = [each for each in seen["received"] if each["key"]]
        assert (keyed["body"], keyed["contentType"]) == ("keyed", "text/plain")
        assert (keyed["key"], keyed["partition"]) == ("k", partition)
        buffered = [each["body"] for each in received if str(each["body"]).startswith("buffered")]
        assert buffered == [f"buffered {number}" for number in range(20)]
        assert seen["received"][-1]["last"] is not None

        stored = hub.events(0)[0]
        assert stored.properties["half"] == "0"
        assert stored.properties["name"] == "n0"
