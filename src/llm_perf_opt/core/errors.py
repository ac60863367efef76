"""The one error a person is meant to read: what happened, why, and what to do."""


class PerfOptError(Exception):
    """A failure with a cause and a remedy; `cli` prints it and leaves with `exit_code`.

    Raised near the cause. `ValueError` stays for wrong arguments in the Python API, `assert` for our own invariants.
    """

    def __init__(self, what: str, *, why: str, fix: str, exit_code: int = 1) -> None:
        super().__init__(f"{what}\n  why: {why}\n  fix: {fix}")
        self.what = what
        self.why = why
        self.fix = fix
        self.exit_code = exit_code

    def add_reason(self, reason: str) -> None:
        """Say more of the cause, which only somebody further up knows."""
        self.why = f"{self.why}; {reason}"
        self.args = (f"{self.what}\n  why: {self.why}\n  fix: {self.fix}",)


class UsageError(PerfOptError):
    """The command was asked for something it cannot mean: exit code 2."""

    def __init__(self, what: str, *, why: str, fix: str) -> None:
        super().__init__(what, why=why, fix=fix, exit_code=2)
