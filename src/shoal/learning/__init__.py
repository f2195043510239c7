"""How weights change: from unrolls to gradients, and from gradients to new weights.

Here live the update on fresh unrolls (`update`, compiled in `compiled_update`), on a replay (`replay_update`), of several
learners together (`joint_update`), one gradient at a time (`gradient_steps`), gradients that are applied elsewhere
(`remote_gradients`), what carries changes into shared weights (`weight_exchange`, laid out in memory by `shared_layout`) and
into shared statistics (`shared_statistics`), how a batch is cut (`minibatches`), which unrolls a learner takes (`intake`) and
the judgement of an update (`soundness`). May import: algos, nets, replay, ops, core. You may change: anything that gives the
same bits for the same seed. Looking for the loops that call these? `roles`. For losses? `algos`. For how an unroll is made?
`acting`.
"""
