"""The benchmark `python -m gpu_load`: fronts of vLLM under the load of a GPU, without one.

`core` is an executor for vLLM that computes nothing: a step takes as long as on a GPU, by the
clock of `pacing`, which also writes the tokens and records the work. `loads` has the loads and the
bodies of their requests. `callers` is a process that sends them and records when the tokens arrive:
to the worker it is a minimal platform with jobs, to vLLM's server it is minimal clients.
`__main__` starts the sides, measures them and prints the table.
"""
