"""Makes imports of the packages in NOT_INSTALLED fail; Python runs it first, by its name."""

import os
import sys

for name in os.environ["NOT_INSTALLED"].split():
    # As where the package is not installed, Python raises ModuleNotFoundError.
    sys.modules[name] = None  # type: ignore[assignment]  # documented, but not in its type
