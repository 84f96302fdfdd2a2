"""Serves the worker's API over plain HTTP, without a platform (``--serve``).

``listener`` opens the ports in the first second; its child process, ``startup_server``, answers
pings there until the worker is ready. ``http_server`` then takes over the sockets and runs uvicorn,
whose ``connections`` have limits, behind filters for the ports, for other origins and for web pages
in a browser on this machine.

``service`` has the app. It checks a request's key (``keys``), makes a job of its path and its body
(``bodies``, limited in size, time and memory), runs the job as the platform's queue would, and
sends the yields as a response or as events. Only the contents of files are no jobs: ``transfers``
reads and sends them as bytes. A worker that fails to start answers everything with the reason.
"""
