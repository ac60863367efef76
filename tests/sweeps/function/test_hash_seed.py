"""The bytes alive are the same form whatever the hash of a text is: a function file is the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
from llm_perf_opt.sweeps.function.figures.costs import live_curves, undominated
from llm_perf_opt.sweeps.function.form import Form
sizes = [Form.atom(name) * (7 - place) for place, name in enumerate(("batch", "context", "new_tokens", "experts"))]
lives = [(size + 3, place, 6) for place, size in enumerate(sizes)]
print([list(form.terms.items()) for form in undominated(live_curves(lives, 6))])
"""


def test_the_order_of_terms_does_not_hang_on_the_hash_of_a_text() -> None:
    """The last op has all four alive: 7 batch + 3, 6 context + 3, 5 new_tokens + 3, 4 experts + 3."""
    printed = set()
    for seed in ("0", "1", "2", "3", "4"):
        world = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        ran = subprocess.run([sys.executable, "-c", PROGRAM], env=world, capture_output=True, text=True, check=True)
        printed.add(ran.stdout.strip())
    terms = [(("batch",), 7), ((), 12), (("context",), 6), (("new_tokens",), 5), (("experts",), 4)]
    assert printed == {str([terms])}
