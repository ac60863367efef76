"""What is said on stderr: progress from the package's loggers, and the closing lines of a verb."""

from __future__ import annotations

import logging
import sys


class _Plain(logging.Formatter):
    """Progress reads as a sentence; what is more than progress says so."""

    def format(self, record: logging.LogRecord) -> str:
        label = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        return label + record.getMessage()


def start_talking() -> None:
    """Send the package's log to stderr, from INFO on; other libraries keep their own settings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Plain())
    logger = logging.getLogger("llm_perf_opt")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO)


def talk_more() -> None:
    """Let DEBUG through too: `--verbose`."""
    logging.getLogger("llm_perf_opt").setLevel(logging.DEBUG)


def say(line: str) -> None:
    """One line of talk."""
    print(line, file=sys.stderr)
