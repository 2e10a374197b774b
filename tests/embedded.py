"""The one condition under which tests that decode the embedded target are skipped.

The package is never imported: it is installed without its dependencies, so importing it fails and would skip in silence.
"""

from __future__ import annotations

import pytest

from eagle3_ext import smollm2

needs_target = pytest.mark.skipif(not smollm2.is_installed(), reason=f"no embedded target: {smollm2.INSTALL_COMMAND}")
