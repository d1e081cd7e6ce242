"""Run by path, a command imports from the repository root, not from its own folder.

The folder's own modules would hide packages of the same name. Import it before anything else.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
