"""Names of the signals that end processes."""

import signal


def signal_name(number: int) -> str:
    """Return a signal's name; those between the first and the last real-time one have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
