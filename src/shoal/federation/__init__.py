"""Federation: a parent averages the weights of children that train elsewhere, over WebSockets.

Without I/O: `wire` (messages as bytes), `protocol` (their order), `codec` (vectors as bytes), `rules` (how weights are
taken in), `adoption` (how a child takes in the parent's), `normaliser`, `guard` (what is let in), `state` (the parent's,
immutable), `arrivals` (what a push holds), `hogwild` (averaging without a lock), `hub` (a whole parent), `courier` (a whole
child), `timeouts`. The shells around them: `server`, `client`,
`link` (a client on a thread of its own), `addresses` (where one may listen, TLS), `datagrams` (UDP on a LAN). With training:
`child` (`join`: a run that exchanges, by `driver`), `parent` (`Parent`: `serving`, `judging`, `parent_folder`), `settings`,
`vectors`, `local` (parent and children on one machine).

May import: NumPy, msgspec, websockets, `core.errors`; what joins a federation to training may import `launch`. Nothing without
training imports JAX: a light client starts in a fraction of a second. You may change: add a rule by its file and a
line in `rules.RULES`. Looking for shared weights inside one machine? `topologies.shared_params`. For the protocol on
paper? `docs/federation.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.federation.child import join as join
    from shoal.federation.parent import Parent as Parent

__all__ = ["Parent", "join"]


def __getattr__(name: str) -> Any:
    """What trains loads JAX, so it is imported when it is first asked for."""
    if name == "join":
        from shoal.federation.child import join

        return join
    if name == "Parent":
        from shoal.federation.parent import Parent

        return Parent
    raise AttributeError(f"module 'shoal.federation' has no attribute {name!r}")
