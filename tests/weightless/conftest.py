"""The weightless tests import their table of snippets by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
