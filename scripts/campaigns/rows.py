"""What one campaign reports: how many faults it tried, and what went wrong."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table of a fault campaign.

    Attributes
    ----------
    campaign : str
        Name of the campaign, as given to ``--only``.
    what : str
        What was tried, in a few words.
    tried : int
        Number of faults, files, runs or kills tried.
    findings : list[str]
        One sentence for each fault that did harm; empty when none did.
    """

    campaign: str
    what: str
    tried: int
    findings: list[str] = field(default_factory=list)
