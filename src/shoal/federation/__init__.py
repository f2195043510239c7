"""Federation: a parent averages the weights of children that train elsewhere, over WebSockets.

Without I/O: `wire` (messages as bytes), `protocol` (their order), `codec` (vectors as bytes), `rules` (how weights are
taken in), `adoption` (how a child takes in the parent's), `normaliser`, `guard` (what is let in), `state` (the parent's,
immutable), `hub` (a whole parent), `courier` (a whole child), `timeouts`. The shells around them: `server`, `client`,
`link` (a client on a thread of its own), `addresses` (where one may listen, TLS), `datagrams` (UDP on a LAN).

May import: NumPy, msgspec, websockets, `core.errors`; what joins a federation to training may import `launch`. None of the
modules above imports JAX: a light client starts in a fraction of a second. You may change: add a rule by its file and a
line in `rules.RULES`. Looking for shared weights inside one machine? `topologies.shared_params`. For the protocol on
paper? `docs/federation.md`.
"""
