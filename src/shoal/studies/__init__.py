"""Studies of many runs: grids of trainings, comparisons, published experiments.

This package holds `grid` (every combination of settings that fits), `compare` (runs a grid, each training in a process of its
own), `finished` (runs that are trained if they are missing), `words` (settings as words of a command line), `handle` (one run in
another process), `reproduce` (published experiments as folders), `horizons` (GA3C's t_max and gamma, with `estimators` for the
bias of n-step returns), `learners` (a model of many learners and actors, with `learner_times` for its measured times), `zoo`
(agents with default settings beside published scores, with `zoo_page` for its table), `measured` (results of runs as rows of a
table) and `statistics` (IQM with confidence intervals). May import:
`launch` and below; SciPy. To add one: a runner is a function and a line in its module's `RUNNERS`. Looking for figures and
pages? `observe`. For one run? `launch`.
"""
