"""A server on a thread of its own: what other threads read of it while it works."""

from __future__ import annotations

from parents import make_hub

from shoal.federation.addresses import Address
from shoal.federation.serving import Serving


def test_faults_are_a_snapshot() -> None:
    """The server's thread adds and removes faults while the parent's loop goes through them."""
    serving = Serving(make_hub(), Address("127.0.0.1", 0))
    serving._server.faults |= {"ws://127.0.0.1:1": "refused", "ws://127.0.0.1:2": "refused"}
    seen = []
    for number, url in enumerate(serving.faults):
        seen.append(url)
        serving._server.faults.pop(url)
        serving._server.faults[f"ws://127.0.0.1:{3 + number}"] = "refused"
    assert seen == ["ws://127.0.0.1:1", "ws://127.0.0.1:2"]
    assert list(serving.faults) == ["ws://127.0.0.1:3", "ws://127.0.0.1:4"]
