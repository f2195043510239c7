"""`shoal.train` and what it returns, as a user of the package calls them."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tiny_envs import SPACES, Identity, Mirror, Walk

import shoal
from shoal.algos.a2c import A2CConfig
from shoal.algos.ppo import PPOConfig
from shoal.core.errors import BadInput
from shoal.core.program import Report
from shoal.experiment import resolve
from shoal.launch.saved import under
from shoal.nets.net import NetConfig

T, B = 8, 4
TINY: dict[str, Any] = {
    "runtime": "inline",
    "topology": "sequential",
    "actors": 1,
    "envs": B,
    "steps": 3 * T * B,
    "net": {"hidden": (8,)},
    "algo": {"name": "a2c", "unroll": T},
    "eval_episodes": 0,
    "sinks": ("jsonl",),
    "metrics_every": 0,
    "quiet": True,
    "report": False,
}


def train(env: Any, out: Path, **settings: Any) -> shoal.Run:
    return shoal.train(env, out=out, **{**TINY, **settings})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> shoal.Run:
    """A run on an own class, trained for a moment."""
    return train(Walk, tmp_path_factory.mktemp("api") / "run")


@pytest.mark.parametrize(
    "env",
    ["CartPole-v1", "tiny_envs:Walk", Walk, lambda: Walk(), partial(Mirror, "Dict"), Identity("mixed")],
    ids=["id", "import path", "class", "lambda", "partial", "JAX environment"],
)
def test_an_environment_is_an_id_a_class_or_anything_that_makes_one(env: Any, tmp_path: Path) -> None:
    more = {"backend": "gymnasium"} if env == "CartPole-v1" else {}
    trained = train(env, tmp_path / "run", **more)
    assert trained.summary["updates"] == 3 and trained.summary["env_steps"] == 3 * T * B
    assert trained.path == tmp_path / "run" and repr(trained) == f"Run({str(trained.path)!r})"


def test_a_run_leaves_what_explains_it(run: shoal.Run) -> None:
    found = {path.name for path in run.path.iterdir()}
    assert {"config.json", "metrics.jsonl", "checkpoints", "policy.safetensors", "summary.json"} <= found
    config = msgspec.json.decode((run.path / "config.json").read_bytes())
    assert config["algo"]["name"] == "a2c" and config["algo"]["unroll"] == T and config["net"]["hidden"] == [8]
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 3 and "loss/policy" in lines[-1]
    assert run.summary["run"] == str(run.path) and run.summary["setup_s"] > 0


def test_callbacks_see_every_update_and_may_end_the_training(tmp_path: Path) -> None:
    seen: list[Report] = []
    whole = train(Walk, tmp_path / "whole", callbacks=[seen.append])
    assert [r.version for r in seen] == [1, 2, 3] and not whole.summary["stopped"]
    assert all("loss/policy" in r.metrics and r.state.params for r in seen)
    ended = train(Walk, tmp_path / "ended", callbacks=[lambda report: report.version == 2])
    assert ended.summary["updates"] == 2 and ended.summary["stopped"]


def test_evaluation_belongs_to_its_seed(run: shoal.Run) -> None:
    seen: list[float] = []
    first, again = run.evaluate(5), run.evaluate(5, on_episode=seen.append)
    assert first == again and first.greedy and first.episodes == 5 == len(first.returns) and first.faults == 0
    assert first.mean == pytest.approx(np.mean(first.returns)) and sorted(seen) == sorted(first.returns)
    other = run.evaluate(5, seed=9)
    sampled = run.evaluate(5, sample=True)
    assert other.returns != first.returns != sampled.returns
    stored = msgspec.json.decode((run.path / "evaluation.json").read_bytes())
    assert stored["sampled"]["returns"] == list(sampled.returns) and not stored["sampled"]["greedy"]
    assert stored["greedy"]["returns"] == list(other.returns), "the last of each way stays"


# The others are learnt from in tests/scores.
QUICK = ("Discrete", "Box", "Dict")


@pytest.mark.parametrize("kind", [pytest.param(k, marks=() if k in QUICK else pytest.mark.slow) for k in SPACES])
def test_a_policy_speaks_the_environments_own_spaces(kind: str, tmp_path: Path) -> None:
    policy = train(partial(Mirror, kind), tmp_path / "run").policy
    env = Mirror(kind)
    obs, _ = env.reset(seed=0)
    for _ in range(3):
        action = policy(obs)
        assert env.action_space.contains(action), action
        obs = env.step(action)[0]


def test_a_recurrent_policy_remembers_until_it_is_reset(tmp_path: Path) -> None:
    net = {"hidden": (8,), "cell": "gru", "cell_size": 8}
    policy = train(partial(Mirror, "Box"), tmp_path / "run", net=net, steps=30 * T * B).policy
    obs = SPACES["Box"].sample()
    one, two = policy(obs), policy(obs)
    policy.reset()
    assert np.array_equal(policy(obs), one) and not np.array_equal(one, two)


def test_a_loaded_run_is_the_run(run: shoal.Run) -> None:
    loaded = shoal.load(run.path)
    assert loaded.params_hash == run.params_hash == run.summary["params_sha256"]
    assert loaded.summary == msgspec.json.decode(msgspec.json.encode(run.summary))
    assert loaded.evaluate(3).returns == run.evaluate(3).returns
    obs = Walk().reset(seed=1)[0]
    assert loaded.policy(obs) == run.policy(obs)
    newest = max((run.path / "checkpoints").glob("*.safetensors"))
    assert shoal.load(newest).params_hash == run.params_hash


def test_a_run_on_something_without_a_path_is_loaded_with_it(tmp_path: Path) -> None:
    run = train(lambda: Walk(), tmp_path / "run")
    with pytest.raises(BadInput, match="environment 'lambda' is not known"):
        shoal.load(run.path)
    assert shoal.load(run.path, env=lambda: Walk()).evaluate(3).returns == run.evaluate(3).returns


def test_a_report_is_one_page(run: shoal.Run) -> None:
    page = run.report(film=False)
    assert page == run.path / "report.html" and "Walk" in page.read_text()


def test_fine_tuning_begins_with_the_other_runs_weights(run: shoal.Run, tmp_path: Path) -> None:
    def vector(of: shoal.Run) -> np.ndarray:
        params = under(of._loaded().arrays, "state/params/")
        return np.concatenate([params[name].ravel() for name in sorted(params)])

    frozen = {"algo": {"name": "a2c", "unroll": T, "learning_rate": 1e-12}, "seed": 7}
    tuned = train(Walk, tmp_path / "tuned", start_from=run.path, **frozen)
    fresh = train(Walk, tmp_path / "fresh", **frozen)
    np.testing.assert_allclose(vector(tuned), vector(run), atol=1e-6)
    assert np.abs(vector(fresh) - vector(run)).max() > 0.01
    assert tuned.summary["updates"] == 3, "a new run, with a budget of its own"
    with pytest.raises(BadInput, match="do not fit"):
        train(Walk, tmp_path / "wider", start_from=run.path, net={"hidden": (9,)})


def test_a_run_that_starts_from_a_policy_fills_its_replay_by_it(tmp_path: Path) -> None:
    """Actions are random only in a run that begins with untrained weights."""
    td3 = {"name": "td3", "unroll": T, "batch_size": 8, "warmup": 2 * T * B, "noise_scale": 0.0}
    warm: dict[str, list[float]] = {"first": [], "second": []}

    def train_one(name: str, **more: Any) -> shoal.Run:
        def note(report: Report) -> None:
            warm[name].append(report.metrics["explore/warmup"])

        return train("Pendulum-v1", tmp_path / name, algo=td3, backend="jax", callbacks=[note], **more)

    train_one("second", start_from=train_one("first").path)
    assert warm == {"first": [1.0, 0.0, 0.0], "second": [0.0, 0.0, 0.0]}


@pytest.mark.parametrize("algo", ["dqn", "dyna_q"])
def test_a_trained_policy_explores_no_more_than_at_its_end(algo: str) -> None:
    """Its defaults differ; what is given stays."""

    def start(trained: bool, **given: float) -> float:
        epsilon: float = resolve("CartPole-v1", {"algo": {"name": algo, **given}}, trained=trained).algo.epsilon_start
        return epsilon

    assert (start(False), start(True), start(True, epsilon_start=0.5)) == (1.0, 0.02, 0.5)


def test_fine_tuning_by_dqn_explores_no_more_than_at_its_end(tmp_path: Path) -> None:
    dqn = {"name": "dqn", "unroll": T, "batch_size": 8, "warmup": T * B}
    first, told = train("CartPole-v1", tmp_path / "first", algo=dqn, backend="jax"), list[float]()

    def note(report: Report) -> None:
        told.append(report.metrics["explore/epsilon"])

    train("CartPole-v1", tmp_path / "second", algo=dqn, backend="jax", start_from=first.path, callbacks=[note])
    assert max(told) <= 0.021, told


def test_settings_may_be_objects_dicts_or_dotted(tmp_path: Path) -> None:
    ways: list[dict[str, Any]] = [
        {"algo": A2CConfig(unroll=T, gamma=0.9), "net": NetConfig(hidden=(8,))},
        {"algo": {"name": "a2c", "unroll": T, "gamma": 0.9}, "net": {"hidden": [8]}},
        {"algo": "a2c", "algo.unroll": T, "algo.gamma": 0.9, "net": {"hidden": "8"}},
    ]
    runs = [train(Walk, tmp_path / str(i), **{**TINY, **way}) for i, way in enumerate(ways)]
    # An object says every field; a dict leaves the others to the table of tuned settings.
    assert runs[0].plan.algo.normalise_obs is False and runs[1].plan.algo.normalise_obs is True
    assert runs[1].params_hash == runs[2].params_hash and runs[0].plan.algo.gamma == runs[2].plan.algo.gamma == 0.9


def test_settings_from_files(run: shoal.Run, tmp_path: Path) -> None:
    toml = tmp_path / "settings.toml"
    toml.write_text('env = "tiny_envs:Walk"\nseed = 4\n[algo]\nname = "ppo"\nunroll = 8\nclip = 0.3\n')
    trained = shoal.train(config=toml, out=tmp_path / "toml", **{k: v for k, v in TINY.items() if k != "algo"})
    assert trained.plan.algo == trained.plan.algo_class.Config(**{**vars(trained.plan.algo), "clip": 0.3, "unroll": 8})
    assert trained.summary["seed"] == 4 and isinstance(trained.plan.algo, PPOConfig)
    json = tmp_path / "settings.json"
    json.write_text('{"seed": 5}')
    assert train(Walk, tmp_path / "json", config=json).summary["seed"] == 5
    assert train(Walk, tmp_path / "dict", config={"seed": 6}, seed=7).summary["seed"] == 7, "what is said last wins"


def test_a_runs_own_config_runs_it_again_bit_for_bit(run: shoal.Run, tmp_path: Path) -> None:
    again = shoal.train(config=run.path / "config.json", out=tmp_path / "again", quiet=True, report=False)
    assert again.params_hash == run.params_hash


def test_training_in_another_thread(tmp_path: Path) -> None:
    """As notebooks and studies do; signals belong to the main thread alone."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(train(Walk, tmp_path / "run").summary["updates"])
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert found == [3]


@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [
        ("CartPole-v7", {}, "environment 'CartPole-v7' is not known.*CartPole-v1"),
        (7, {}, "environment is 7; it must be an id"),
        (None, {}, "no environment"),
        (Walk, {"algo": "pp0"}, "unknown algorithm 'pp0'. Did you mean 'ppo'"),
        (Walk, {"algo": "nowhere:Thing"}, "cannot import algorithm 'nowhere:Thing'"),
        (Walk, {"net": "nowhere:Thing"}, "cannot import net 'nowhere:Thing'"),
        (Walk, {"topology": "sink"}, "unknown topology 'sink'"),
        (Walk, {"runtime": "thread"}, "unknown runtime 'thread'. Did you mean 'threads'"),
        (Walk, {"steps": -5}, "--steps is -5"),
        (Walk, {"envs": 0}, "--envs is 0"),
        (Walk, {"actors": 0}, "--actors is 0"),
        (Walk, {"learners": 2}, "--learners is 2"),
        (Walk, {"stepz": 5}, "--stepz"),
        (Walk, {"algo": {"name": "ppo", "clipp": 0.1}}, "--algo.clipp.*'--algo.clip'"),
        (Walk, {"runtime": "fused"}, "environment 'Walk' is a Python environment"),
        (Walk, {"config": "nowhere.toml"}, "cannot read config 'nowhere.toml'"),
        (Walk, {"start_from": "nowhere"}, "there is no run 'nowhere'"),
        (Walk, {"out": "/proc/run"}, "cannot write the run folder"),
        (Walk, {"backend": "envpool"}, "backend"),
        (lambda: 3, {}, "int"),
    ],
)
def test_bad_input_is_one_line_with_value_and_rule(
    env: Any, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        shoal.train(env, **{**TINY, "out": tmp_path / "run", **settings})
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_a_used_folder_is_refused_and_kept(run: shoal.Run) -> None:
    before = run.params_hash
    with pytest.raises(BadInput, match="already holds a run"):
        train(Walk, run.path)
    assert run.params_hash == before


def test_one_training_at_a_time_uses_a_folder(tmp_path: Path) -> None:
    path, refused = tmp_path / "run", []

    def another(report: Report) -> None:
        with pytest.raises(BadInput, match=f"in use by process {os.getpid()} on .* since .*: one training at a time"):
            shoal.train(Walk, resume=path, quiet=True)
        refused.append(shoal.load(path, Walk).path)  # looking at it needs no lock

    run = train(Walk, path, callbacks=[another])
    assert refused == [path] * 3 and run.summary["updates"] == 3
    again = shoal.train(Walk, resume=path, steps=4 * T * B, eval_episodes=0, quiet=True, report=False)
    assert again.summary["updates"] == 4, "it is free when the first has ended"


def test_resume_needs_a_run_and_its_own_spaces(run: shoal.Run, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no run"):
        shoal.train(resume=tmp_path / "nothing")
    with pytest.raises(BadInput, match="its own folder"):
        shoal.train(resume=run.path, out=tmp_path / "other")
    with pytest.raises(BadInput, match="space changed"):
        shoal.train(partial(Mirror, "Box"), resume=run.path, steps=10 * T * B, quiet=True)
