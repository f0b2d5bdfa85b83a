"""How thorough property tests are whose examples take milliseconds: few examples in `make test`, more in `make stress`.

Tests of cheap examples take their number from the profiles in `conftest.py`.
"""

import os

THOROUGH = int(os.environ.get("COE_THOROUGH", "10" if "COE_STRESS_SEED" in os.environ else "1"))
"""A factor; set it to 100 for an afternoon's search."""
