"""`shoal parent`, `shoal join`, `shoal federation ...`: what they refuse, in one line and with exit code 2; what they print."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from families import CHILD, parent_of
from parents import ARCHITECTURE, TOKEN, connected, make_hub, serving
from websockets.asyncio.server import serve

from shoal.cli.federation_flags import finished
from shoal.cli.main import main
from shoal.cli.parent import join_command
from shoal.experiment import resolve
from shoal.federation import wire
from shoal.federation.addresses import fingerprint_of
from shoal.federation.guard import Limits
from shoal.federation.settings import FederationConfig, told
from shoal.federation.token_files import read_token
from shoal.federation.wire import Violation
from shoal.process.openssl import make_certificate

PINS = f"{'00' * 32},{'11' * 32}"


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which a command refuses."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    lines = capsys.readouterr().err.strip().splitlines()
    assert ended.value.code == 2, lines
    assert len(lines) == 1 and lines[0].startswith("shoal: "), lines
    return lines[0]


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["parent", "CartPole-v1", "--alpha", "1.5"], "alpha is 1.5; it must lie in [0, 1]"),
        (["parent", "CartPole-v1", "--beta", "-0.5"], "beta is -0.5; it must lie in [0, 1]"),
        (["parent", "CartPole-v1", "--alpha", "nan"], "expected a finite number"),
        (["parent", "CartPole-v1", "--rule", "average"], "unknown rule 'average'"),
        (["parent", "CartPole-v1", "--rule", "fedavg", "--alpha", "0.5"], "unknown setting --rule.alpha"),
        (["parent", "CartPole-v1", "--bind", "0.0.0.0:7777"], "needs TLS (--cert and --key)"),
        (["parent", "CartPole-v1", "--bind", "7777"], "expected HOST:PORT"),
        (["parent", "CartPole-v1", "--cert", "c.pem"], "only --cert was given"),
        (["parent", "CartPole-v1", "--key", "k.pem"], "only --key was given"),
        (["parent", "CartPole-v1", "--children", "http://x"], "expected ws://HOST:PORT"),
        (["parent", "CartPole-v1", "--child-tokens", "pi=T"], "--child-tokens has 1 files for 0 children"),
        (["parent", "CartPole-v1", "--child-tokens", "pi"], "expected NAME=FILE"),
        (["parent", "CartPole-v1", "--child-tokens", "pi=T,pi=U"], "a name of its own"),
        (["parent", "CartPole-v1", "--child-tokens", "../pi=T"], "--child-tokens is '../pi': 1 to 64 of"),
        (["parent", "CartPole-v1", "--every-updates", "-1"], "--every-updates is '-1'"),
        (["parent", "CartPole-v1", "--alfa", "1"], "unknown option --alfa. Did you mean '--alpha'"),
        (["parent", "CartPole-v1", "--sinks", "paper"], "unknown sink 'paper'"),
        (["parent", "CartPole-v1", "--transport", "udp", "--rule", "median"], "--transport udp and --rule median"),
        (["parent", "CartPole-v1", "--moments", "travel", "--rule", "median"], "--moments travel and --rule median"),
        (["federation", "forgive", "nowhere"], "--child is missing"),
        (["federation", "forgive", "nowhere", "--child", "../pi"], "1 to 64 of"),
        (["federation", "forgive", "nowhere", "--child", "pi"], "is no parent's run"),
        (["parent"], "no environment"),
        (["parent", "--resume", "nowhere"], "there is no run 'nowhere'"),
        (["parent", "CartPole-v1", "--token-file", "/nowhere/token"], "cannot write the token file"),
        (["join", "ws://127.0.0.1:7777"], "--token-file is missing"),
        (["join", "--token-file", "T"], "give the address of one parent"),
        (["join", "ws://127.0.0.1:7777", "--token-file", "nowhere"], "cannot read the token file 'nowhere'"),
        (["federation", "locale"], "Did you mean 'local'"),
        (["parent", "CartPole-v1", "--pin", "00" * 32], "--pin has 1 fingerprints for 0 children"),
        (
            ["parent", "CartPole-v1", "--pin", PINS, "--children", "wss://h:1"],
            "--pin has 2 fingerprints for 1 children",
        ),
        (["parent", "CartPole-v1", "--pin", "ab", "--children", "wss://h:1"], "fingerprint 'ab'; expected the SHA-256"),
        (["federation", "cert", "--host", ","], "--host is ',': expected at least one host name or address"),
        (["federation", "cert", "--cert", "nowhere/c.pem"], "cannot write 'nowhere/c.pem': No such file or directory"),
        (["federation", "cert", "--key", "nowhere/k.pem"], "cannot write 'nowhere/k.pem': No such file or directory"),
        (["federation", "local", "CartPole-v1", "--children", "0"], "--children is 0: at least 1"),
        (["federation", "local"], "give one environment"),
        (["federation", "local", "CartPole-v1", "--rule", "median"], "--rule median needs the pushes of 3 children"),
        (["federation", "local", "CartPole-v1", "--rule", "fedavg", "--rule.quorum", "4"], "--children is 2"),
        (["parent", "CartPole-v1", "--until-eval", "400", "--eval-every", "0"], "needs evaluations"),
        (["federation", "local", "CartPole-v1", "--slow", "half"], "--slow is 'half': expected numbers"),
        (["federation", "local", "CartPole-v1", "--slow", "1,0.5"], "each factor must lie in [1, 100]"),
        (["federation", "local", "CartPole-v1", "--slow", "nan"], "each factor must lie in [1, 100]"),
        (["federation", "local", "CartPole-v1", "--slow", "1,1,2"], "--slow has 3 factors for 2 children"),
        (["federation", "local", "CartPole-v1", "--slow", "2", "--runtime", "processes"], "would keep their speed"),
        (["parent", "CartPole-v1", "--consistency", "hogwild", "--rule", "fedavg"], "--rule fedavg, which gathers"),
        (["parent", "CartPole-v1", "--consistency", "chaos"], "--consistency is 'chaos'"),
        (["federation", "status", "ws://127.0.0.1:7777"], "--token-file is missing"),
    ],
)
def test_bad_words(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(words, capsys)
    assert not list(tmp_path.rglob("*")) or [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert not list(tmp_path.glob("runs/*"))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize("command", [["join"], ["federation", "status"]])
def test_a_parent_that_is_not_there(command: list[str], token: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"ws://127.0.0.1:{free_port()}"
    assert f"no parent at {url}" in refused([*command, url, "--token-file", token], capsys)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "ws://10.0.0.1:7777", "wss://u:p@h:1", "ws://127.0.0.1"])
def test_addresses_that_no_parent_has(url: str, token: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "address" in refused(["join", url, "--token-file", token], capsys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--actor", "4"], "unknown option --actor. Did you mean '--actors'"),
        (["--steps", "100"], "--steps is chosen by the parent; a child chooses --topology"),
        (["--algo.gamma", "0.9"], "--algo.gamma is chosen by the parent"),
        (["--alpha", "0.9"], "--alpha is chosen by the parent"),
    ],
)
@pytest.mark.parametrize("where", [["ws://127.0.0.1:1"], ["--listen", "127.0.0.1:0"]])
def test_options_that_no_child_has(
    where: list[str], words: list[str], said: str, token: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before it connects: a child that listens would wait for its parent first."""
    assert said in refused(["join", *where, "--token-file", token, *words], capsys)


@pytest.mark.parametrize("command", [["join"], ["federation", "status"]])
def test_a_wrong_token(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    other.write_text("another token, long enough as well")
    hub = make_hub()
    with serving(hub) as url:
        line = refused([*command, url, "--token-file", str(other)], capsys)
    assert "the parent refused (token)" in line and TOKEN not in line
    assert hub.guard.refused["token"] == 1


def cartpole(**changes: Any) -> Any:
    hub = make_hub()
    plan = resolve("CartPole-v1", {"algo": "a2c", "net": {"hidden": (4,)}, "steps": 100})
    return hub, {**told(plan, FederationConfig()), **changes}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, f"8 at the parent ({ARCHITECTURE})"),
        ({"env": "mypkg:Env"}, "--trust-env"),
        ({"env": "NoSuchEnv-v0"}, "NoSuchEnv-v0"),
        ({"algo": {"name": "ppo", "clip": "wide"}}, "--algo.clip is 'wide'"),
    ],
)
def test_a_parent_whose_run_cannot_be_trained_here(
    changes: dict[str, Any], said: str, token: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub, settings = cartpole(**changes)
    object.__setattr__(hub.federation, "settings", settings)
    with serving(hub) as url:
        words = ["join", url, "--token-file", token, "--out", str(tmp_path / "run")]
        assert said in refused(words, capsys)
    assert not (tmp_path / "run").exists()


@contextmanager
def another_protocol() -> Iterator[str]:
    """A parent of a later version: its messages begin with another number."""
    ready, url, box = threading.Event(), [""], {}

    async def answer(connection: Any) -> None:
        await connection.recv()
        refusal = b"".join(wire.pieces(wire.Refused(reason="protocol", message="protocol 1; this side speaks 2")))
        await connection.send(refusal[:3] + b"\x02" + refusal[4:])

    async def main_() -> None:
        box["loop"], box["end"] = asyncio.get_running_loop(), asyncio.Event()
        async with serve(answer, "127.0.0.1", 0) as server:
            url[0] = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
            ready.set()
            await box["end"].wait()

    thread = threading.Thread(target=lambda: asyncio.run(main_()))
    thread.start()
    ready.wait()
    yield url[0]
    box["loop"].call_soon_threadsafe(box["end"].set)
    thread.join()


def test_another_version_of_the_protocol(token: str, capsys: pytest.CaptureFixture[str]) -> None:
    with another_protocol() as url:
        assert "protocol 2; this side speaks 1" in refused(["join", url, "--token-file", token], capsys)


def test_a_port_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        port = one.getsockname()[1]
        words = ["parent", "CartPole-v1", "--bind", f"127.0.0.1:{port}", "--out", str(tmp_path / "run")]
        assert "is in use" in refused(words, capsys)
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_no_parents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "is not a parent's run" in refused(["parent", "--resume", str(tmp_path)], capsys)


def test_status(token: str, capsys: pytest.CaptureFixture[str]) -> None:
    hub = make_hub()
    connected(hub, "pi-3")
    with serving(hub) as url:
        for words in (["--json"], []):
            with pytest.raises(SystemExit) as ended:
                main(["federation", "status", url, "--token-file", token, *words])
            assert ended.value.code == 0
    first, *rest = capsys.readouterr().out.splitlines()
    report = json.loads(first)
    assert report["version"] == 0 and [child["child"] for child in report["children"]] == ["pi-3"]
    assert report["children"][0]["steps_per_s"] == 0.0
    assert any("pi-3" in line and "here" in line for line in rest)
    assert any("steps/s" in line for line in rest)
    assert list(hub.state.children) == ["pi-3"]  # who asks is no child


RESULTS = (
    "children", "exchanges", "updates", "env_steps", "bytes_up", "bytes_down", "exchange_ms_p50", "exchange_ms_p99",
    "rejected", "eval_mean", "eval_sd", "solved_at_s", "run",
)  # fmt: skip


def test_the_json_line_of_parent_and_local(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs read these keys."""
    with parent_of(tmp_path / "run", algo="a2c", steps=100) as parent:
        summary = parent.folder.summary(parent.hub, parent.ledger, ended="stopped", seconds=1.0, solved_at=None)
    capsys.readouterr()
    finished(summary, quiet=True, json=True)
    out, err = capsys.readouterr()
    assert tuple(json.loads(out)) == RESULTS and out.count("\n") == 1 and not err


def test_a_child_is_forgiven_by_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with parent_of(tmp_path / "run", algo="a2c", steps=100, limits=Limits(strikes=1)) as parent:
        for child in ("pi-3", "pi-4"):
            parent.hub.guard.count(Violation("magnitude", "x"), child)
        parent.folder.save(parent.hub, parent.ledger, 1.0)
    about: dict[str, Any] = {"env": None, "algo": None, "net": None, "federation": None, "limits": Limits(strikes=1)}
    with pytest.raises(SystemExit) as ended:
        main(["federation", "forgive", str(tmp_path / "run"), "--child", "pi-3"])
    assert ended.value.code == 0
    with parent_of(None, resume=tmp_path / "run", **about) as again:
        guard = again.hub.guard
        assert guard.quarantined("pi-3") and guard.quarantined("pi-4"), "a restart does not end a quarantine"
        assert guard.refused == {"magnitude": 2}
        thread = threading.Thread(target=_stopped_when, args=(again, lambda: not guard.quarantined("pi-3")))
        thread.start()
        again.run()
        thread.join()
        assert not guard.quarantined("pi-3") and guard.quarantined("pi-4")
    assert not list((tmp_path / "run" / "forgiven").iterdir())


def _stopped_when(parent: Any, done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60.0
    while not done() and time.monotonic() < end:
        time.sleep(0.01)
    parent._over_outside = lambda: True


def test_a_certificate_and_its_fingerprint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cert, key = tmp_path / "c.pem", tmp_path / "k.pem"
    words = ["federation", "cert", "--cert", str(cert), "--key", str(key)]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    assert capsys.readouterr().out.split() == ["fingerprint", fingerprint_of(cert)]
    assert key.stat().st_mode & 0o077 == 0
    assert "exists already" in refused(words, capsys)


def test_the_join_command_of_a_parent_on_all_addresses(tmp_path: Path) -> None:
    cert, key = tmp_path / "c.pem", tmp_path / "k.pem"
    make_certificate(cert, key, [socket.gethostname()], 1)
    with parent_of(tmp_path / "run", algo="a2c", steps=100, bind="0.0.0.0:0", cert=cert, key=key) as parent:
        assert f"join wss://{socket.gethostname()}:" in join_command(parent, fingerprint_of(cert))
        assert ":0 " not in join_command(parent, "")


def test_the_fingerprint_of_a_chain_is_that_of_its_first_certificate(tmp_path: Path) -> None:
    for name in ("leaf", "authority"):
        make_certificate(tmp_path / name, tmp_path / f"{name}-key", ["localhost"], 1)
    leaf, authority = ((tmp_path / name).read_text() for name in ("leaf", "authority"))
    chain = tmp_path / "chain"
    for between in ("", "\n", "\nsubject=CN = an authority\n"):
        chain.write_text(f"subject=CN = localhost\n\n{leaf}{between}{authority}")
        assert fingerprint_of(chain) == fingerprint_of(tmp_path / "leaf")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file or directory"),
        ("", "no complete block"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n", "no complete block"),
        ("-----BEGIN CERTIFICATE-----\nAAAAA\n-----END CERTIFICATE-----\n", "is broken: "),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "with key"),
    ],
)
def test_a_broken_certificate(
    text: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_certificate(tmp_path / "c.pem", tmp_path / "k.pem", ["localhost"], 1)
    (tmp_path / "c.pem").unlink()
    if text is not None:
        (tmp_path / "c.pem").write_text(text)
    line = refused(["parent", "CartPole-v1", "--cert", "c.pem", "--key", "k.pem"], capsys)
    assert "certificate c.pem" in line and said in line
    assert not (tmp_path / "runs").exists()


def test_tls_with_a_pinned_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cert, key = tmp_path / "c.pem", tmp_path / "k.pem"
    with pytest.raises(SystemExit):
        main(["federation", "cert", "--cert", str(cert), "--key", str(key)])
    with parent_of(tmp_path / "run", algo="a2c", steps=100, cert=cert, key=key) as parent:
        assert parent.url.startswith("wss://")
        words = ["federation", "status", parent.url, "--token-file", str(parent.token_file)]
        capsys.readouterr()
        assert "not the pinned" in refused([*words, "--pin", "00" * 32], capsys)
        assert "not trusted" in refused(words, capsys)
        with pytest.raises(SystemExit) as ended:
            main([*words, "--pin", fingerprint_of(cert), "--json"])
        assert ended.value.code == 0


@pytest.mark.parametrize("own", [False, True])
def test_a_child_that_listens(tmp_path: Path, own: bool) -> None:
    """With the shared token, and with one that admits only itself and that its parent presents to it."""
    port = free_port()
    url = f"ws://127.0.0.1:{port}"
    federation = FederationConfig(every_updates=1, eval_every=0, updates=3)
    tokens = {"pi": tmp_path / "its own"} if own else {}
    parent = parent_of(tmp_path / "parent", algo="a2c", federation=federation, children=[url], child_tokens=tokens)
    file = tokens.get("pi", parent.token_file)
    code: list[Any] = []

    def child() -> None:
        words = ["join", "--listen", f"127.0.0.1:{port}", "--token-file", str(file), "--name", "pi", "--quiet"]
        words += [f"--{name.replace('_', '-')}={value}" for name, value in CHILD.items()]
        try:
            main([*words, "--out", str(tmp_path / "child")])
        except SystemExit as ended:
            code.append(ended.code)

    thread = threading.Thread(target=child)
    thread.start()
    with parent:
        summary = parent.run()
        thread.join(60)
    assert summary["updates"] == 3 and summary["children"] == 1 and code == [0]
    secret = read_token(file)
    assert secret != read_token(parent.token_file) or not own
    parent.hub.guard.tokens.check(secret, "pi")
    if own:
        with pytest.raises(Violation, match="no valid token"):
            parent.hub.guard.tokens.check(secret, "another")
