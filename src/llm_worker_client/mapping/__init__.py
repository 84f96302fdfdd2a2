"""Converts HTTP requests to jobs of the worker, and the yields of jobs to HTTP responses.

The gateway of a queue endpoint forwards the bodies of POST requests and little else. A job can
contain a whole request: its method, its path with the query string, and its body. ``requests``
makes this job, and tells how its yields form the response; requests for the platform's own API are
forwarded instead. ``forms`` reads the forms in which clients upload files, and stores a large file
in a temporary one; otherwise this package does no I/O. ``responses`` converts the yields, and
renders errors in the format of the client that has sent the request. ``exchange`` calls them all.
"""
