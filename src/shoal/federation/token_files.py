"""Token files: they keep a child's secret out of command lines and URLs."""

from __future__ import annotations

import os
from pathlib import Path

from shoal.core.errors import BadInput
from shoal.federation.guard import Tokens


def read_token(path: str | Path) -> str:
    """Read the secret from a file. `BadInput` if it has none."""
    try:
        secret = Path(path).read_text().strip()
    except OSError as error:
        raise BadInput(f"cannot read the token file {str(path)!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"the token file {str(path)!r} is not text") from None
    if not 16 <= len(secret) <= 256:
        raise BadInput(f"the token file {str(path)!r} holds {len(secret)} characters; a token has 16 to 256")
    return secret


def make_token(path: Path) -> str:
    """Create a secret in a new file that only its owner may read."""
    secret = Tokens().issue()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secret + "\n")
    except OSError as error:
        raise BadInput(f"cannot write the token file {str(path)!r}: {error.strerror}") from None
    return secret
