"""Token files keep secrets out of command lines and URLs; a register keeps the hashes of those that a parent admits."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from shoal.core.errors import BadInput
from shoal.federation.guard import Tokens
from shoal.run.files import write_atomically

FILE = "tokens.json"


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


class TokenRegister:
    """The tokens that a parent admits, as a file in its run folder: only hashes, readable only by its owner.

    `shoal federation token` changes the file, and the running parent notices. Writers take turns; a reader sees the old or
    the new content.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._seen: tuple[int, ...] = ()

    @classmethod
    def of_run(cls, run: str | Path) -> TokenRegister:
        """The register of a parent's run. `BadInput` if the folder has none."""
        register = cls(Path(run))
        if not register._path.is_file():
            raise BadInput(f"{str(run)!r} is no parent's run: it has no {FILE}, which a parent writes when it starts")
        return register

    def read(self) -> Tokens:
        """The current tokens; none if there is no file."""
        try:
            return Tokens.from_json(self._path.read_bytes())
        except FileNotFoundError:
            return Tokens()
        except OSError as error:
            raise BadInput(f"cannot read {str(self._path)!r}: {error.strerror}") from None

    @contextlib.contextmanager
    def changing(self) -> Iterator[Tokens]:
        """The tokens, for the block to change; they are written if it ends without an error."""
        with self._turn():
            tokens = self.read()
            before = tokens.tokens
            yield tokens
            if tokens.tokens == before:
                return
            try:
                write_atomically(self._path, tokens.to_json(), 0o600)
            except OSError as error:
                raise BadInput(f"cannot write {str(self._path)!r}: {error.strerror}") from None

    def changed(self) -> Tokens | None:
        """The tokens if the file has changed since the last call. `BadInput`, once per change, if it is not a token file."""
        try:
            found = self._path.stat()
        except OSError:
            return None  # without a file, the tokens that were read stay valid
        now = (found.st_ino, found.st_mtime_ns, found.st_size)
        if now == self._seen:
            return None
        self._seen = now
        return self.read()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        try:
            descriptor = os.open(self._path.parent, os.O_RDONLY)
        except OSError as error:
            raise BadInput(f"cannot read {str(self._path.parent)!r}: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
