"""Makes imports of the packages in NOT_INSTALLED fail; Python imports this module at startup."""

import os
import sys

for name in os.environ["NOT_INSTALLED"].split():
    # Python raises ModuleNotFoundError, as if the package were not installed.
    sys.modules[name] = None  # type: ignore[assignment]  # documented, but not in its type
