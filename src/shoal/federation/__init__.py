"""Federation: a parent averages the weights of children that train elsewhere, over WebSockets.

Modules without I/O: `wire` (messages as bytes), `protocol` (the order of messages), `codec` (vectors as bytes), `rules` (how
the parent merges children's weights), `adoption` (how a child merges the parent's weights), `normaliser`, `guard` (admission
and limits), `rates`, `state` (the parent's immutable state), `arrivals` (decodes and checks pushes), `hogwild` (averaging
without a lock), `hub` (a complete parent), `session` (its side of a connection), `courier` (a complete child), `timeouts`,
`slicing` (vectors as datagrams), `tally` (counts over UDP).
Modules with I/O: `server`, `client`, `link` (a client on its own thread), `addresses` (listening addresses, TLS), `datagrams`
(UDP on a LAN), `pardons` (ends of quarantines). Modules with training: `child` (`join`: a run that exchanges weights through
`driver`), `parent` (`Parent`: `serving`, `judging`, `parent_folder`), `settings`, `vectors`, `local` (parent and children on
one machine).

May import: NumPy, msgspec, websockets, `core.errors`; the modules with training may also import `launch`. The others never
import JAX, so that a light client starts in a fraction of a second. You may change: add a rule by its file and a line in
`rules.RULES`. Looking for shared weights inside one machine? `topologies.shared_params`. For the protocol specification?
`docs/federation.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.federation.child import join as join
    from shoal.federation.parent import Parent as Parent

__all__ = ["Parent", "join"]


def __getattr__(name: str) -> Any:
    """Import `join` and `Parent` on first use, because they load JAX."""
    if name == "join":
        from shoal.federation.child import join

        return join
    if name == "Parent":
        from shoal.federation.parent import Parent

        return Parent
    raise AttributeError(f"module 'shoal.federation' has no attribute {name!r}")
