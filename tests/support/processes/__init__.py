"""Commands, workers, servers and endpoints in separate processes.

`background` starts a command with its output in a file (`forking` makes Python scripts start fast),
`commands` waits for its end, and `servers` for the URL on which it listens. On top of them,
`emulated_endpoint` starts a worker next to an emulator in the test's process, and `scripted_worker`
one with the real SDK and no engine. `emulator_peer` acts as a caller or a worker of an emulator
itself, and `fleets` has an emulator's workers run small programs. `vllm_server` and `s3_server` are
programs of their own. `kills` and `memory` look at running processes from outside.
"""
