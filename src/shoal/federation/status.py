"""Client for a parent's status: children, versions, contributions, refusals. Needs no JAX."""

from __future__ import annotations

import asyncio
from typing import Any

from shoal.core.errors import BadInput
from shoal.federation.client import Lost, join
from shoal.federation.courier import Courier


def ask(url: str, token: str, pin: str = "") -> dict[str, Any]:
    """The status of the parent at `url`. `BadInput` if it cannot be reached or does not admit the token."""

    async def asked() -> dict[str, Any]:
        async with await join(url, Courier("status", token, watches=True), pin=pin) as client:
            return await client.status()

    try:
        return asyncio.run(asked())
    except Lost as error:
        raise BadInput(str(error)) from None
