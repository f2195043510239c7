"""A parent's run folder: that of an ordinary run, which `eval`, `play` and `report` read, plus `federation.json`.

A checkpoint holds the learner's state under the same names as in any run, and the parent's own state (versions, children with
their sequence numbers, the rule's memory) under `federation/`.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from shoal.core import config as configs
from shoal.core.algorithm import Algorithm, LearnerState
from shoal.core.blueprint import named_leaves
from shoal.core.errors import BadInput
from shoal.core.weights import params_hash
from shoal.experiment import Plan, merge, nest
from shoal.federation import state as states
from shoal.federation.hub import Hub
from shoal.federation.ledger import Ledger, updates_of
from shoal.federation.settings import FederationConfig
from shoal.federation.token_files import TokenRegister, make_token, read_token
from shoal.federation.vectors import StateVectors
from shoal.launch.evaluation import EvaluationFailed, Evaluator
from shoal.launch.saved import check_same_spaces, under, write_policy
from shoal.run.checkpoints import Checkpoints, Loaded
from shoal.run.folder import RunFolder, read_json
from shoal.studies import statistics

FILE, TOKEN = "federation.json", "token"
OURS = "federation/"  # prefix of the parent's own arrays


class Settled(NamedTuple):
    """The settings that a parent was started with."""

    federation: FederationConfig
    rule: Mapping[str, Any]  # settings of its rule
    topology: Mapping[str, Any]  # the topology settings that were given, for the children
    algo: Mapping[str, Any] | None  # likewise of the algorithm; None in a folder of an older version, which sent all
    run: str = ""
    config: Mapping[str, Any] = {}  # config.json

    def explicit(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """{axis: settings that were given, now or before} of topology and algorithm."""
        now, found = nest(given), {}
        if topology := now.get("topology") or self.topology:
            found["topology"] = dict(topology)
        if self.algo is not None:
            found["algo"] = merge({"algo": dict(self.algo)}, {"algo": now.get("algo", {})}).get("algo", {})
        return found

    def plan(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Stored settings merged with those given now, to resolve again."""
        stored = {name: value for name, value in self.config.items() if name not in ("machine", "spec")}
        return merge(stored, given)


class Restored(NamedTuple):
    """Content of a checkpoint."""

    state: states.State
    seconds: float
    recent: list[float]  # returns
    times: list[float]  # milliseconds of exchanges
    counts: Mapping[str, Any]  # of the hub


class ParentFolder:
    """All files of a parent."""

    def __init__(
        self,
        folder: RunFolder,
        plan: Plan,
        vectors: StateVectors,
        settled: Settled,
        new: bool,
        say: Callable[[str], None],
    ) -> None:
        self.folder, self.run = folder, settled.run or f"{folder.path.name}-{secrets.token_hex(4)}"
        self._plan, self._vectors, self._settled, self._new, self._say = plan, vectors, settled, new, say
        self._checkpoints = Checkpoints(folder.checkpoints, keep=plan.settings.keep, on_alert=say)

    @staticmethod
    def settled(path: str | Path) -> Settled:
        """The settings in this folder. `BadInput` if it is not a parent's folder."""
        folder = RunFolder.open(path)
        file = folder.path / FILE
        if not file.exists():
            raise BadInput(
                f"{str(path)!r} is not a parent's run: it has no {FILE}; use `shoal train --resume` for an ordinary run"
            )
        saved = read_json(file)
        config = configs.build(FederationConfig, saved.get("federation", {}))
        tables = (saved.get("rule", {}), saved.get("topology", {}), saved.get("algo"))
        return Settled(config, *tables, str(saved.get("run", "")), folder.read_config())

    @classmethod
    def open(
        cls,
        plan: Plan,
        vectors: StateVectors,
        settled: Settled,
        *,
        out: str | Path | None,
        resume: str | Path | None,
        say: Callable[[str], None],
    ) -> ParentFolder:
        """Create a new folder, or open the one to resume."""
        if resume is None:
            folder = RunFolder.create(out, plan.source.name, plan.settings.algo, "parent")
            return cls(folder, plan, vectors, settled, True, say)
        if out is not None:
            raise BadInput("--out and --resume: a resumed parent continues in its own folder")
        known = cls.settled(resume)
        return cls(RunFolder.open(resume), plan, vectors, settled._replace(run=known.run), False, say)

    def discard(self) -> None:
        """Delete the folder if it is new."""
        if self._new:
            self.folder.discard()

    def write_config(self) -> None:
        """Write config.json, as for any run, and federation.json."""
        self.folder.write_config(self._plan.as_dict())
        document = {
            "run": self.run,
            "federation": configs.as_dict(self._settled.federation),
            "rule": dict(self._settled.rule),
            "topology": dict(self._settled.topology),
            "algo": None if self._settled.algo is None else dict(self._settled.algo),
        }
        self.folder.write_json(self.folder.path / FILE, document)

    def token(self, given: str | Path | None) -> tuple[Path, str]:
        """(token file, secret): the given file or one in the folder; created if it does not exist."""
        path = Path(given) if given is not None else self.folder.path / TOKEN
        if path.exists():
            return path, read_token(path)
        return path, make_token(path)

    @property
    def register(self) -> TokenRegister:
        """The tokens that are admitted."""
        return TokenRegister(self.folder.path)

    def _loaded(self) -> Loaded:
        return self._checkpoints.load(self.folder.checkpoint or "last")

    def restored(self) -> Restored:
        """The parent of a checkpoint, by default the last one, with a version above all versions used before.

        The checkpoint may be of an earlier life, because it was named or because newer ones are damaged: the versions that any
        checkpoint of the folder reserves may have been used since.
        """
        loaded = self._loaded()
        check_same_spaces(self._plan, loaded.meta)
        ceilings = [int(meta.get("ceiling", 0)) for meta in self._checkpoints.metas()]
        state = states.lifted(states.from_arrays(under(loaded.arrays, OURS)), max(ceilings, default=0))
        seconds, counts = float(loaded.meta.get("seconds", 0.0)), loaded.meta.get("counts", {})
        times = loaded.arrays["times"].tolist() if "times" in loaded.arrays else []
        return Restored(state, seconds, loaded.arrays["recent"].tolist(), times, counts)

    def check_fits(self, state: states.State) -> None:
        """Raise `BadInput` if the checkpoint's weights do not fit the plan."""
        if len(state.weights) != self._vectors.layout.size or tuple(state.moments) != self._vectors.moments:
            raise BadInput(
                f"the checkpoint does not fit: {len(state.weights)} weights there, {self._vectors.layout.size} here;"
                " leave the settings of --net, --algo and --moments as they were"
            )

    def save(self, hub: Hub, ledger: Ledger, seconds: float) -> dict[str, np.ndarray]:
        """Write a checkpoint; the parent's arrays in it, {} if writing failed. The caller then calls `Hub.stored`."""
        state = hub.state  # one snapshot for all arrays: pushes go on meanwhile
        ours = hub.checkpoint(state)
        learner = self._vectors.state(state.weights, state.normaliser, state.moments, hub.spent(state))
        arrays = {f"state/{name}": array for name, array in named_leaves(learner).items()}
        arrays |= {f"{OURS}{name}": array for name, array in ours.items()}
        arrays["recent"] = np.asarray(ledger.recent, np.float64)
        arrays["times"] = np.asarray(ledger.times, np.float64)
        meta = {
            "version": updates_of(state),
            "ceiling": states.reserved(state).ceiling,
            "env_steps": state.steps,
            "seconds": seconds,
            "episodes": state.episodes,
            "counts": hub.counts(),
            "spec": msgspec.to_builtins(self._plan.spec),
            "config": {name: value for name, value in self._plan.as_dict().items() if name != "spec"},
            "lasting": [],
        }
        return ours if self._checkpoints.save(state.steps, arrays, meta, ledger.score) is not None else {}

    def finish(self, learner: LearnerState, algorithm: Algorithm, summary: Mapping[str, Any]) -> None:
        """Write policy.safetensors and summary.json."""
        write_policy(self.folder.policy_path, self._plan, learner, algorithm)
        self.folder.write_json(self.folder.summary_path, summary)

    def evaluate(self, evaluator: Evaluator, actor: Any, summary: dict[str, Any]) -> None:
        """Evaluate the parent's last weights, greedy and sampled; results go to the summary and evaluation.json."""
        episodes, seed, ways = self._plan.settings.eval_episodes, self._plan.settings.seed, {}
        try:
            with contextlib.closing(evaluator.play_both(actor, episodes, seed=seed)) as both:
                for sample, played, faults in both:
                    found, way = statistics.summarise(played.returns), "eval_sampled" if sample else "eval"
                    summary |= {f"{way}_mean": found.mean, f"{way}_sd": found.sd, "eval_episodes": episodes}
                    ways["sampled" if sample else "greedy"] = {
                        **{name: getattr(found, name) for name in ("mean", "sd", "iqm", "ci")},
                        "episodes": episodes,
                        "returns": played.returns,
                        "lengths": played.lengths,
                        "greedy": not sample,
                        "faults": faults,
                    }
                    self.folder.write_json(self.folder.evaluation_path, ways)
        except EvaluationFailed as error:
            self._say(f"shoal: trained, but not evaluated: {error}")
        summary["eval_faults"] = evaluator.faults
        self.folder.write_json(self.folder.summary_path, summary)

    def summary(
        self, hub: Hub, ledger: Ledger, *, ended: str, seconds: float, solved_at: float | None
    ) -> dict[str, Any]:
        """Content of `summary.json`; evaluations are filled in later."""
        state, settings, report = hub.state, self._plan.settings, hub.report()
        return {
            "env": self._plan.source.name,
            "algo": settings.algo,
            "topology": "federation",
            "rule": hub.federation.rule_name,
            "seed": settings.seed,
            "children": len(state.children),
            "exchanges": state.pushes,
            "updates": updates_of(state),
            "version": state.version,
            "env_steps": state.steps,
            "episodes": state.episodes,
            "bytes_up": sum(child["bytes_up"] for child in report["children"]),
            "bytes_down": sum(child["bytes_down"] for child in report["children"]),
            "exchange_ms_p50": ledger.quantile(0.5),
            "exchange_ms_p99": ledger.quantile(0.99),
            "rejected": report["rejected"],
            "refused": report["refused"],
            "wall_s": seconds,
            "steps_per_s": state.steps / seconds if seconds > 0 else None,
            "return_mean": ledger.return_mean,
            "solved_at_s": solved_at,
            "eval_mean": None,
            "eval_sd": None,
            "eval_sampled_mean": None,
            "eval_sampled_sd": None,
            "eval_episodes": None,
            "eval_faults": 0,
            "federation": report["children"],
            "ended": ended,
            "stopped": ended in ("stopped", "paused"),
            "params_sha256": params_hash(self._vectors.layout.tree(np.array(state.weights))),
            "run": str(self.folder.path),
        }
