"""The parts that all routes share: the table's row, the answer, and the worker's resources."""
