"""What changed, by git: since the commit that was last gated in full, or since the branch left its upstream."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

BASE = "GATE_BASE"  # the environment variable that names another base


def git(root: Path, *words: str) -> str | None:
    """What git prints, or None where it fails: no repository, no such commit."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def base_commit(root: Path, recorded: str) -> str | None:
    """The commit that changes are counted from, or None where the history does not have it."""
    asked = os.environ.get(BASE)
    if asked:
        return git(root, "rev-parse", "--verify", f"{asked}^{{commit}}")
    upstream = git(root, "merge-base", "HEAD", "@{upstream}")
    if upstream and upstream != git(root, "rev-parse", "HEAD"):
        return upstream
    return git(root, "rev-parse", "--verify", f"{recorded}^{{commit}}") if recorded else None


def changed_files(root: Path, base: str) -> list[str]:
    """Files that differ from the base, committed or not, new ones and removed ones too."""
    listed = git(root, "diff", "--name-only", "--no-renames", base) or ""
    new = git(root, "ls-files", "--others", "--exclude-standard") or ""
    return sorted({*listed.splitlines(), *new.splitlines()})
