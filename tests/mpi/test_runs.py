"""Training under mpiexec: the same bits as elsewhere, roles by rank, one voice, clean ends."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from mpi_job import HERE, TINY, Job, wait_until

from shoal import train
from shoal.core.errors import BadInput
from shoal.core.program import Program, RoleSpec
from shoal.process.mpi_environment import launched
from shoal.run.sinks import read_metrics
from shoal.runtimes.mpi import placed
from shoal.runtimes.ranks import load_mpi

STEPS = str(10 * 2 * 2 * 16)


@pytest.fixture(scope="module")
def inline_hash(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the same run in one thread."""
    run = train(
        "CartPole-v1",
        runtime="inline",
        topology={"name": "sync", "overlap": True},
        actors=2,
        envs=2,
        steps=int(STEPS),
        algo={"unroll": 16, "batch_size": 32},
        net={"hidden": (8,)},
        eval_episodes=0,
        report=False,
        quiet=True,
        out=tmp_path_factory.mktemp("inline") / "run",
    )
    return str(run.summary["params_sha256"])


@pytest.mark.parametrize("windows", ["shared", "rma"])
def test_the_bits_are_those_of_inline_and_one_rank_speaks(windows: str, inline_hash: str, tmp_path: Path) -> None:
    words = ["--steps", STEPS, "--runtime", "mpi", "--runtime.windows", windows, "--topology", "sync", "--json"]
    job = Job.train(tmp_path, 3, "CartPole-v1", *TINY, *words, "--out", "run")
    assert job.end() == 0, job.err.read_text()
    assert len(job.out.read_text().splitlines()) == 1
    assert job.err.read_text().count("run folder") == 1
    assert job.lines[0]["actors"] == 2 and job.lines[0]["params_sha256"] == inline_hash
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["run"]


def test_an_environment_of_several_ranks(tmp_path: Path) -> None:
    words = ["--runtime", "mpi", "--runtime.ranks-per-env", "3", "--envs", "1", "--steps", "256", "--json", "--quiet"]
    words += ["--algo.unroll", "16", "--algo.batch-size", "16", "--net.hidden", "8", "--no-report"]
    job = Job.train(tmp_path, 4, "group_env:SumEnv", *words, "--eval-episodes", "1", "--out", "run")
    assert job.end() == 0, job.err.read_text()
    assert job.lines[0]["actors"] == 1
    assert job.lines[0]["return_mean"] == 10 * (1 + 2 + 3), "three ranks add up in training"
    assert job.lines[0]["eval_mean"] == 10 * 1, "rank 0 evaluates alone"


@pytest.mark.slow
@pytest.mark.parametrize("windows", ["shared", pytest.param("rma", marks=pytest.mark.ci)])
def test_topologies_on_four_ranks(windows: str, tmp_path: Path) -> None:
    """One job, one run after another: also a test that windows are freed and ranks wait for what comes next."""
    job = Job(tmp_path, 4, str(HERE / "topologies_on_ranks.py"), windows)
    assert job.end(280) == 0, job.err.read_text()
    apart = ["actor_learner queue", "actor_learner stack", "actor_learner window"]
    shared = ["shared_params", "seed", "ga3c", "dyna"] if windows == "shared" else []
    driven = ["sync, driven", "learners, driven", "sync, other weights"]
    assert [line["case"] for line in job.lines] == ["sync", *driven, *apart, *shared]
    assert job.lines[0]["params_sha256"] == job.lines[1]["params_sha256"]
    assert all(line["runtime"] == "mpi" and line["updates"] > 0 and not line["stopped"] for line in job.lines)
    assert [line["learners"] for line in job.lines[:7]] == [1, 1, 2, 1, 2, 2, 2]
    acted = {int(version): returns for version, returns in job.lines[3]["returns_by_version"].items()}
    assert len(acted) > 3 and all(acted[v] == [float((v - 1) % 2)] for v in acted if v > 1), (
        "as handed in one update before"
    )


def test_what_crosses_no_nodes_is_refused(tmp_path: Path) -> None:
    words = ["--runtime", "mpi", "--runtime.windows", "rma", "--topology", "shared_params", "--algo", "a2c"]
    job = Job.train(tmp_path, 2, "CartPole-v1", "--envs", "2", *words, "--out", "run")
    assert job.end() == 2
    assert "needs the port Roster, Table, which runtime 'mpi' does not provide" in job.err.read_text()


def test_a_lost_rank_ends_the_job_and_resume_goes_on(tmp_path: Path) -> None:
    run, shared = tmp_path / "run", Path("/dev/shm")
    before = set(shared.glob("mpich_shm_*"))
    words = ["--runtime", "mpi", "--steps", "100000000", "--checkpoint-every", "0.2", "--quiet", "--out", "run"]
    job = Job.train(tmp_path, 3, "CartPole-v1", *TINY, *words)
    wait_until(lambda: len(list((run / "checkpoints").glob("step-*.json"))) > 1, "checkpoints")
    victim = job.ranks()[2]
    os.kill(victim, signal.SIGKILL)
    assert job.end(60) != 0
    wait_until(lambda: not job.ranks(), "the other ranks to end", 30)
    # Jobs of other tests may run at the same time; theirs go when they end.
    wait_until(lambda: set(shared.glob("mpich_shm_*")) <= before, "its shared memory to go", 60)
    steps = _steps(run)
    resumed = Job.train(tmp_path, 3, "--resume", "run", "--quiet", "--json")
    wait_until(lambda: _steps(run) > steps + 1000, "the resumed run to go on")
    resumed.process.send_signal(signal.SIGINT)  # which mpiexec hands on to every rank
    assert resumed.end() == 0, resumed.err.read_text()
    assert resumed.lines[-1]["stopped"] and resumed.lines[-1]["env_steps"] >= steps + 1000


@pytest.mark.parametrize(("topology", "ranks"), [pytest.param("sync", 2, marks=pytest.mark.slow), ("shared_params", 3)])
def test_the_replay_is_there_again_after_a_resume(topology: str, ranks: int, tmp_path: Path) -> None:
    words = ["--runtime", "mpi", "--algo", "dqn", "--algo.capacity", "200", "--algo.warmup", "32", "--quiet"]
    words += ["--topology", topology]
    job = Job.train(tmp_path, ranks, "CartPole-v1", *TINY, *words, "--steps", "1280", "--out", "run")
    assert job.end() == 0, job.err.read_text()
    metrics = tmp_path / "run" / "metrics.jsonl"
    before = len(read_metrics(metrics))
    resumed = Job.train(tmp_path, ranks, "--resume", "run", "--steps", "1344", "--quiet", "--no-report")
    assert resumed.end() == 0, resumed.err.read_text()
    rows = [row["replay/rows"] for row in read_metrics(metrics)[before:] if "replay/rows" in row]
    assert rows and max(rows) > 64, "more rows than the resumed run has made"


def _steps(run: Path) -> int:
    return max(int(path.stem.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*.json"))


def test_what_an_actor_meets_is_told_and_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    words = ["--runtime", "mpi", "--envs", "1", "--steps", "100000", "--max-faults", "0", "--quiet", "--out", "run"]
    words += ["--algo.unroll", "16", "--algo.batch-size", "16", "--net.hidden", "8", "--eval-episodes", "0"]
    job = Job.train(tmp_path, 2, "group_env:Raises", *words)
    assert job.end() == 1
    assert "1 faults, more than --max-faults 0" in job.err.read_text() and "out of order" in job.err.read_text()
    assert "out of order" in (tmp_path / "run" / "faults.log").read_text() and _steps(tmp_path / "run") > 0


def test_a_step_that_does_not_return_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    words = ["--runtime", "mpi", "--runtime.step-timeout", "2", "--envs", "1", "--steps", "100000", "--quiet"]
    words += ["--algo.unroll", "16", "--algo.batch-size", "16", "--net.hidden", "8", "--eval-episodes", "0"]
    job = Job.train(tmp_path, 2, "group_env:Hangs", *words, "--out", "run")
    assert job.end() == 1
    assert "actor-0 (rank 1): a step of its environment did not return within 2 s" in job.err.read_text()
    assert _steps(tmp_path / "run") > 0
    wait_until(lambda: not job.ranks(), "the rank that hangs to end", 30)


def test_too_many_roles_are_refused_in_one_line(tmp_path: Path) -> None:
    job = Job.train(tmp_path, 2, "CartPole-v1", *TINY, "--runtime", "mpi", "--actors", "4", "--out", "run")
    assert job.end() == 2
    lines = [line for line in job.err.read_text().splitlines() if line.startswith("shoal:")]
    assert len(lines) == 1 and "has 5 roles" in lines[0] and "needs mpiexec -n 5, or --actors 1" in lines[0]
    assert not (tmp_path / "run").exists()


def test_outside_mpiexec_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="needs mpiexec -n N"):
        train("CartPole-v1", runtime="mpi", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_missing_extra_names_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(BadInput, match=r"pip install 'shoal\[mpi\]'"):
        load_mpi()
    with pytest.raises(BadInput, match=r"pip install 'shoal\[mpi\]'"):
        train("CartPole-v1", runtime="mpi", out=tmp_path / "run")


def _nothing(ports: Any, context: Any) -> Any:
    raise AssertionError("placing builds no role")


def _program(*names: str) -> Program:
    def role(name: str, main: bool) -> RoleSpec:
        kind = name.partition("-")[0]
        return RoleSpec(
            name=name, build=_nothing, main=main, kind=kind, steps_env=kind == "actor", learns=kind == "learner"
        )

    return Program(roles=tuple(role(name, i == 0) for i, name in enumerate(names)))


def test_learners_come_first_and_actors_have_their_groups() -> None:
    program = _program("learner-0", "actor-0", "actor-1", "learner-1")
    names = [(spec.name, runs) for spec, runs in placed(program, 6, 2)]
    assert names == [
        ("learner-0", True),
        ("learner-1", True),
        ("actor-0", True),
        ("actor-0", False),
        ("actor-1", True),
        ("actor-1", False),
    ]
    with pytest.raises(BadInput, match="needs mpiexec -n 4"):
        placed(program, 5, 1)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({}, None),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, (2, 4)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "8"}, (0, 8)),
        ({"PMIX_RANK": "1", "SLURM_NTASKS": "2"}, (1, 2)),
        ({"SLURM_NTASKS": "2"}, None),
        ({"PMI_RANK": "x", "PMI_SIZE": "4"}, None),
    ],
)
def test_what_launchers_say(words: dict[str, str], expected: tuple[int, int] | None) -> None:
    assert launched(words) == expected
