"""Tokens of single children: issued and revoked while the parent runs, kept as hashes for their owner alone."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from families import A2C, parent_of
from parents import ARCHITECTURE, TOKEN, Wire, make_hub, serving

from shoal.cli.main import main
from shoal.core.errors import BadInput
from shoal.federation import wire
from shoal.federation.client import Refusal
from shoal.federation.courier import Courier, Update
from shoal.federation.datagrams import DatagramHub
from shoal.federation.guard import Tokens
from shoal.federation.hub import Hub
from shoal.federation.link import Link
from shoal.federation.session import Answer
from shoal.federation.slicing import UP, key_of, slices
from shoal.federation.status import ask
from shoal.federation.token_files import FILE, TokenRegister, read_token
from shoal.federation.wire import Violation

WEIGHTS = np.ones(8, np.float32)


def courier(child: str, token: str, *, watches: bool = False) -> Courier:
    return Courier(child, token, architecture=ARCHITECTURE, watches=watches)


def two() -> tuple[Hub, str, str]:
    """A parent that knows a token of `pi` and one of `laptop`."""
    hub = make_hub()
    return hub, hub.guard.tokens.issue("pi"), hub.guard.tokens.issue("laptop")


def without(hub: Hub, child: str) -> Tokens:
    """The parent's tokens after one was revoked, as another process writes them."""
    tokens = Tokens.from_json(hub.guard.tokens.to_json())
    assert tokens.revoke(child) == 1
    return tokens


def test_the_register_holds_no_secret_and_is_its_owners_alone(tmp_path: Path) -> None:
    register = TokenRegister(tmp_path)
    with register.changing() as tokens:
        secret = tokens.issue("pi")
    file = tmp_path / FILE
    assert file.stat().st_mode & 0o777 == 0o600
    assert secret not in file.read_text()
    register.read().check(secret, "pi")


def test_the_register_notices_each_change_once(tmp_path: Path) -> None:
    register, other = TokenRegister(tmp_path), TokenRegister(tmp_path)
    assert register.changed() is None  # there is none yet
    with other.changing() as tokens:
        tokens.issue("pi")
    first = register.changed()
    assert first is not None and len(first.tokens) == 1 and register.changed() is None
    with other.changing() as tokens:
        tokens.revoke("pi")
    second = register.changed()
    assert second is not None and second.tokens[0].revoked and register.changed() is None
    with pytest.raises(BadInput, match="needs at least 16"):
        fail(other)
    assert register.changed() is None, "what failed is not written"
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(BadInput, match="not a token file"):
        register.changed()
    assert register.changed() is None, "told once"


def fail(register: TokenRegister) -> None:
    with register.changing() as tokens:
        tokens.issue("laptop")
        tokens.admit("short")


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    def add(number: int) -> None:
        with TokenRegister(tmp_path).changing() as tokens:
            tokens.issue(f"child-{number}")

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(TokenRegister(tmp_path).read().tokens) == 8


def test_a_new_shared_token_takes_the_place_of_the_old_and_a_revoked_one_stays_revoked() -> None:
    tokens, old, new = Tokens(), "a" * 20, "b" * 20
    pi = tokens.issue("pi")
    tokens.share(old)
    tokens.share(old)
    assert len(tokens.tokens) == 2
    tokens.share(new)
    tokens.check(new, "laptop")
    tokens.check(pi, "pi")
    with pytest.raises(Violation, match="was revoked"):
        tokens.check(old, "laptop")
    tokens.revoke("*")
    tokens.share(new)
    with pytest.raises(Violation, match="was revoked"):
        tokens.check(new, "laptop")


def test_a_revoked_child_is_dropped_with_a_reason_and_others_stay() -> None:
    hub, pi, laptop = two()
    ended: list[tuple[str, Answer | None]] = []
    wires = {}
    for name, secret in (("pi", pi), ("laptop", laptop)):
        wires[name] = made = Wire(hub, courier(name, secret))
        made.session = hub.session(lambda reason, answer, name=name: ended.append((name, answer)))
        made.join()
    hub.readmit(without(hub, "pi"))
    assert [name for name, _ in ended] == ["pi"] and wires["pi"].session.closed and not wires["laptop"].session.closed
    answer = ended[0][1]
    assert answer is not None and answer.message is not None and answer.close
    wires["pi"].side.feed(b"".join(bytes(piece) for piece in answer.message))
    refused = wires["pi"].side.finish().header
    assert isinstance(refused, wire.Refused) and refused.fatal
    assert (refused.reason, refused.message) == ("token", "the token for 'pi' was revoked")
    before = hub.state
    late = wires["pi"].session.feed(b"SHL")
    assert late is not None and late.close and hub.state.weights is before.weights
    again = Wire(hub, courier("pi", pi)).join().header
    assert again.reason == "token" and again.message == "the token for 'pi' was revoked"


def test_a_child_may_ask_for_the_status_until_its_token_is_revoked() -> None:
    hub, pi, _ = two()
    with serving(hub) as url:
        assert ask(url, pi)["run"] == "run-1"
        hub.guard.tokens = without(hub, "pi")
        with pytest.raises(BadInput, match="this token was revoked"):
            ask(url, pi)
    hub, pi, _ = two()
    watching = Wire(hub, courier("status", pi, watches=True))
    watching.join()
    hub.readmit(without(hub, "pi"))
    assert watching.session.closed
    watching.close()
    assert not hub.watchers


def test_a_child_on_a_socket_hears_that_its_token_was_revoked() -> None:
    hub, pi, laptop = two()
    with serving(hub) as url, Link(url, courier("pi", pi)) as one, Link(url, courier("laptop", laptop)) as other:
        for link in (one, other):
            link.give(Update(WEIGHTS, base=0))
            assert link.take(None) is not None
        hub_loop(url, hub, without(hub, "pi"))
        one.give(Update(WEIGHTS, base=0))
        with pytest.raises(Refusal, match="the token for 'pi' was revoked"):
            one.take(None)
        other.give(Update(WEIGHTS, base=0))
        assert other.take(None) is not None
    assert (hub.state.children["pi"].pushes, hub.state.children["laptop"].pushes) == (1, 2)


def hub_loop(url: str, hub: Hub, tokens: Tokens) -> None:
    """Give the hub new tokens on the thread that owns it: between two messages of a connection that is open already."""
    done = threading.Event()

    def greeted(hello: wire.Hello) -> None:
        hub.readmit(tokens)
        done.set()

    hub.greeted = greeted
    with Link(url, courier("passer-by", TOKEN)):
        assert done.wait(60)
    hub.greeted = lambda hello: None


def test_datagrams_of_a_revoked_child_are_unknown() -> None:
    hub, pi, _ = two()
    datagrams = DatagramHub(hub)
    datagrams.register(wire.Hello(child="pi", token=pi, life="life", attempt=1))

    def push(sequence: int) -> list[tuple[bytes, object]]:
        key = key_of(pi, "pi", hub.federation.run, "life", 1)
        sent = slices(UP, "pi", key, sequence, hub.state.version, WEIGHTS)
        return [answer for one in sent for answer in datagrams.receive(one, "somewhere", float(sequence))]

    assert push(1) and hub.state.pushes == 1
    hub.readmit(without(hub, "pi"))
    assert not push(2) and hub.state.pushes == 1 and datagrams.unknown == 1


def said(words: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["federation", "token", *words])
    out, err = capsys.readouterr()
    assert ended.value.code == code, err
    if code:
        assert err.startswith("shoal: ") and err.count("\n") == 1, err
    return err if code else out


def test_the_commands_and_a_running_parent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    with parent_of(run, algo=A2C, steps=1000) as parent:
        path = said(["add", str(run), "--child", "pi"], capsys).strip()
        assert path == str(run / "token-pi") and Path(path).stat().st_mode & 0o777 == 0o600
        parent._readmit()
        ask(parent.url, read_token(path))
        assert "has a token already" in said(["add", str(run), "--child", "pi"], capsys, 2)
        old = read_token(path)
        assert said(["add", str(run), "--child", "pi", "--replace"], capsys).strip() == path
        said(["revoke", str(run), "--shared"], capsys)
        parent._readmit()
        ask(parent.url, read_token(path))
        for secret in (old, read_token(parent.token_file)):
            with pytest.raises(BadInput, match="this token was revoked"):
                ask(parent.url, secret)
        listed = json.loads(said(["list", str(run), "--json"], capsys))["tokens"]
        assert [(t["child"], t["revoked"]) for t in listed] == [(None, True), ("pi", True), ("pi", False)]
        assert "any child" in said(["list", str(run)], capsys)
        said(["revoke", str(run), "--child", "pi"], capsys)
        parent._readmit()
        with pytest.raises(BadInput, match="this token was revoked"):
            ask(parent.url, read_token(path))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["lst"], "Did you mean 'list'"),
        (["--child", "pi"], "unknown option '--child'"),
        (["add"], "give one run folder of a parent"),
        (["add", "nowhere"], "--child is missing"),
        (["add", "nowhere", "--child", "pi"], "'nowhere' is no parent's run: it has no tokens.json"),
        (["add", "run", "--child", "../pi"], "--child is '../pi': 1 to 64 of"),
        (["add", "run", "--child", "pi", "--file", "nowhere/t"], "cannot write the token file"),
        (["revoke", "run"], "expected either --child NAME or --shared"),
        (["revoke", "run", "--shared", "--child", "pi"], "expected either --child NAME or --shared"),
        (["revoke", "run", "--child", "laptob"], "the token of 'laptob' is not among the valid ones. Did you mean"),
    ],
)
def test_bad_words(
    words: list[str],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    with TokenRegister(tmp_path / "run").changing() as tokens:
        tokens.issue("laptop")
    before = (tmp_path / "run" / FILE).read_bytes()
    assert line in said(words, capsys, 2)
    assert (tmp_path / "run" / FILE).read_bytes() == before and len(list((tmp_path / "run").iterdir())) == 1
