"""Learning: from unrolls to gradients, and from gradients to new weights.

This package holds the update on fresh unrolls (`update`, compiled in `compiled_update`), on a replay (`replay_update`), of
several learners together (`joint_update`), one gradient at a time (`gradient_steps`), gradients that are applied elsewhere
(`remote_gradients`), the exchange with shared weights (`weight_exchange`, laid out in memory by `shared_layout`) and with
shared statistics (`shared_statistics`), the cutting of a batch (`minibatches`), the selection of a learner's unrolls
(`intake`) and the check of an update (`soundness`). May import: algos, nets, replay, ops, process, core. You may change:
anything that gives the same bits for the same seed. Looking for the loops that call these? `roles`. For losses? `algos`. For
how an unroll is made? `acting`.
"""
