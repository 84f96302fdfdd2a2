"""Strategies of the policies by which a stream is chunked."""

from hypothesis import strategies as st

from worker.chunking import ChunkPolicy

chunk_policies = st.builds(
    ChunkPolicy,
    largest=st.integers(1, 60),
    smallest=st.sampled_from([0, 0.5, 1, 1.5, 4]),
    growth=st.sampled_from([0, 1, 1.1, 1.5, 3]),
    max_delay=st.sampled_from([0.0, 0.02, 0.1]),
)
