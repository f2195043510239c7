"""rlox's PPO (PyTorch, with rollouts and advantages in Rust), with the RL Zoo's settings for LunarLander."""

from __future__ import annotations

from typing import Any

from measure import ENV, Measure, arguments

ENVS = 16
ZOO = {"n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01}
ZOO |= {"learning_rate": 3e-4, "anneal_lr": False, "clip_vloss": False}

if __name__ == "__main__":
    args = arguments(__doc__)
    measure = Measure(args.seconds, args.until_return)
    import torch
    from rlox.algorithms.ppo import PPO
    from rlox.callbacks import Callback

    torch.set_num_threads(1)

    class Iterations(Callback):
        """A point after each rollout and its training. rlox does not report returns of whole episodes, so none are recorded."""

        steps = 0

        def on_step(self, **_: Any) -> bool:
            self.steps += ENVS * int(ZOO["n_steps"])
            return not measure.iteration(self.steps, [])

    PPO(ENV, n_envs=ENVS, seed=args.seed, callbacks=[Iterations()], **ZOO).train(total_timesteps=100_000_000)
    measure.report("rlox", ZOO, int(ZOO["batch_size"]), ZOO["batch_size"] / ZOO["n_epochs"])
