"""Finds, fetches and checks images, videos and audio in requests before vLLM reads them.

vLLM receives media only as ``data:`` URLs: its own fetcher would fetch from any reachable host.
``walker`` finds the media in a body, and refuses keys and parts that must not reach vLLM.
``loader`` checks all media of a request and replaces the remote ones in a copy of the body. For
this it gets remote files from ``fetcher``, which connects only to the public internet, and lets
``contents`` detect a file's format and count its bytes and pixels, before vLLM decodes it.
"""
