"""What a campaign reports: how many faults it tried, and what went wrong."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table of a campaign: what was tried, how often, and a sentence for each fault that did harm."""

    what: str
    tried: int
    findings: list[str] = field(default_factory=list)
