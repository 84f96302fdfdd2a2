"""Creates, changes and deletes endpoints with version 2 of the platform's REST API.

``command`` reads a plan from flags and a file. ``plan`` validates it and makes the body of the
request that would create the endpoint. ``settings`` has the worker's settings and their allowed
values, as far as they can be checked without the worker, and masks secrets in all output.
``apply`` compares the plan with the existing endpoint, sends one request, waits until a worker has
answered a test job, and restores the endpoint if none does. ``workers`` reads logs and the status
of workers. All of them call the platform through ``api``; their errors are ``DeployError``.
"""
