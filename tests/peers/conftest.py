"""SGLang imports torchvision, whose wheel for CUDA cannot register its ops beside a CPU torch; none is called here."""

from __future__ import annotations

import sys
from types import ModuleType

sys.modules.setdefault("torchvision._meta_registrations", ModuleType("torchvision._meta_registrations"))
