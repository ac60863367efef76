"""Faults on purpose: in forwards and in our own code, at writes and kills, in files, names and threads.

    python scripts/fault_campaign.py --quick                    a sample of each, within three minutes
    python scripts/fault_campaign.py                            all of them, within three hours of one core
    python scripts/fault_campaign.py --landing 44               the samples that this landing owes: five landings, all
    python scripts/fault_campaign.py --long 44                  a third of them whole, a sample of the others
    python scripts/fault_campaign.py --only threads,memory      some of them
    python scripts/fault_campaign.py --kinds function           some kinds of files alone, of `hostile_files`
    python scripts/fault_campaign.py --write docs/evidence/reliability.md

A campaign is a function `campaign_NAME(*, quick, seed)` in a file of `scripts/campaigns`, and gives rows. Each
runs in a process of its own, so that none can hide or cause what another finds. Exit code 1: something was found.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CAMPAIGNS = ROOT / "scripts" / "campaigns"
START, END = "<!-- table: begin -->", "<!-- table: end -->"
SHOWN = 40  # findings printed in full for one campaign
LIMIT_S = {True: 900, False: 3600}  # of one campaign, by `quick`; whatever takes longer is a finding
# They begin first.
LONGEST = ("hostile_files", "hostile_names", "forward_faults", "own_faults", "kills", "write_faults", "interrupts")
# Whole campaigns by turns, each about as long: three long gates run them all.
TURNS = (
    ("forward_faults", "memory", "bounded_work", "study_on_ray"),
    ("hostile_files", "own_faults", "threads", "interrupts"),
    ("hostile_names", "write_faults", "kills", "writers", "study_kills", "study_writers"),
)
SAMPLES = 5  # landings that share the samples of all campaigns
sys.path.insert(0, str(ROOT))

from benchmarks.pages import put_between  # noqa: E402  found once the root is on the path
from scripts.campaigns.rows import Row  # noqa: E402  likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What one campaign found, and how long it took."""

    rows: list[Row]
    seconds: float
    cpu_seconds: float | None = None  # of its process and those it started; None where it broke off


def homes() -> dict[str, str]:
    """The campaigns there are, each with the file that holds it."""
    definition = re.compile(r"^def campaign_(\w+)\(", re.MULTILINE)
    texts = {file.stem: file.read_text("utf-8") for file in CAMPAIGNS.glob("*.py")}
    return {name: stem for stem, text in texts.items() for name in definition.findall(text)}


def names() -> list[str]:
    """Of all campaigns."""
    return sorted(homes())


def run_campaign(name: str, *, quick: bool, seed: int, kinds: str = "") -> Campaign:
    """One campaign in a process of its own. One that breaks off, or has no end, is a finding."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, __file__, "--inside", name, "--rows", str(file), "--seed", str(seed)]
        some = [*(["--quick"] if quick else []), *(["--kinds", kinds] if kinds else [])]
        reason = _run([*command, *some], LIMIT_S[quick])
        if file.exists():
            report = json.loads(file.read_text("utf-8"))
            rows, cpu_seconds = [Row(**row) for row in report["rows"]], report["cpu_seconds"]
        else:
            rows, cpu_seconds = [Row(what="the campaign itself", tried=0, findings=[reason])], None
    return Campaign(rows=rows, seconds=time.perf_counter() - started, cpu_seconds=cpu_seconds)


def _run(command: list[str], limit_s: int) -> str:
    """Run it to its end; how it ended."""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return f"broke off: not over after {limit_s} s"
    last = " / ".join(done.stderr.strip().splitlines()[-3:])
    return f"broke off: {last[:600]}"


def _environment() -> dict[str, str]:
    """One thread for torch, nothing from the network, and this tree before any installed one."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "PYTHONHASHSEED": "0"}
    return {**os.environ, **settings, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run_inside(name: str, file: Path, *, quick: bool, seed: int, kinds: str = "") -> None:
    """The other side of `run_campaign`: run it here and leave the rows in `file`."""
    module = importlib.import_module(f"scripts.campaigns.{homes()[name]}")
    rows = getattr(module, f"campaign_{name}")(quick=quick, seed=seed, **({"kinds": kinds.split(",")} if kinds else {}))
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_seconds = sum(usage.ru_utime + usage.ru_stime for usage in spent)
    file.write_text(json.dumps({"rows": [asdict(row) for row in rows], "cpu_seconds": cpu_seconds}), "utf-8")


def lines_of(campaigns: dict[str, Campaign]) -> dict[str, list[str]]:
    """Campaign -> its rows as Markdown, with its time next to the first."""
    lines: dict[str, list[str]] = {}
    for name, campaign in campaigns.items():
        for place, row in enumerate(campaign.rows):
            title, seconds = ("", "") if place else (f"`{name}`", f"{campaign.seconds:,.0f}")
            text = f"| {title} | {row.what} | {row.tried:,} | {len(row.findings):,} | {seconds} |"
            lines.setdefault(name, []).append(text)
    return lines


def table(lines: dict[str, list[str]]) -> str:
    """The rows of all campaigns, and a line of totals."""
    rows = [line for name in sorted(lines) for line in lines[name]]
    cells = [[cell.strip().replace(",", "") for cell in row.split("|")[-4:-1]] for row in rows]
    tried, findings, took = (sum(int(cell or 0) for cell in column) for column in zip(*cells, strict=True))
    head = ["| campaign | what | tried | findings | seconds |", "|---|---|--:|--:|--:|"]
    return "\n".join([*head, *rows, f"| **all** | | **{tried:,}** | **{findings:,}** | **{took:,}** |"])


def lines_on(page: Path) -> dict[str, list[str]]:
    """The rows that a page has, by campaign."""
    lines: dict[str, list[str]] = {}
    name = ""
    for line in page.read_text("utf-8").partition(START)[2].partition(END)[0].strip().splitlines()[2:-1]:
        name = line.split("|")[1].strip().strip("`") or name
        lines.setdefault(name, []).append(line)
    return lines


def with_kinds(before: list[str], after: list[str]) -> list[str]:
    """The rows of a campaign with those of some kinds of files in their places, or at the end; its seconds stay."""
    by_kind = {_kind_of(line): line for line in before}
    for line in after:
        _, title, *cells, _ = line.split("|")
        old = by_kind.get(_kind_of(line))
        title, seconds = ("  ", "  ") if old is None else (old.split("|")[1], old.split("|")[-2])
        by_kind[_kind_of(line)] = "|".join(["", title, *cells[:-1], seconds, ""])
    return list(by_kind.values())


def _kind_of(line: str) -> str:
    return line.split("|")[2].partition(" (")[0].strip()


def due_whole(number: int) -> set[str]:
    """The campaigns that the long gate of a landing runs whole; one that no turn names is in every turn."""
    named = {name for turn in TURNS for name in turn}
    return {name for name in names() if name not in named} | set(TURNS[number % len(TURNS)])


def due_samples(number: int) -> list[str]:
    """The campaigns of which the gate of a landing runs a sample."""
    return [name for place, name in enumerate(names()) if place % SAMPLES == number % SAMPLES]


def run_all(chosen: Sequence[str], *, sampled: set[str], seed: int, jobs: int) -> dict[str, Campaign]:
    """`jobs` campaigns at a time, those that take longest first; in the order of `chosen`."""
    campaigns: dict[str, Campaign] = {}
    with ThreadPoolExecutor(jobs) as pool:
        begun = sorted(chosen, key=lambda name: LONGEST.index(name) if name in LONGEST else len(LONGEST))
        name_of = {pool.submit(run_campaign, name, quick=name in sampled, seed=seed): name for name in begun}
        for done in as_completed(name_of):
            campaigns[name_of[done]] = done.result()
            _tell(name_of[done], done.result())
    return {name: campaigns[name] for name in chosen}


def _tell(name: str, campaign: Campaign) -> None:
    findings = [finding for row in campaign.rows for finding in row.findings]
    tried = sum(row.tried for row in campaign.rows)
    cpu = "" if campaign.cpu_seconds is None else f" ({campaign.cpu_seconds:.0f} s of CPU)"
    print(f"{name}: {tried:,} tried, {len(findings):,} findings, {campaign.seconds:.0f} s{cpu}", file=sys.stderr)
    for finding in findings[:SHOWN]:
        print(f"  {finding}", file=sys.stderr)


def run_kinds(options: argparse.Namespace) -> int:
    """Some kinds of files alone, and their rows on the page."""
    name = "hostile_files"
    campaign = run_campaign(name, quick=options.quick, seed=options.seed, kinds=options.kinds)
    _tell(name, campaign)
    lines = lines_of({name: campaign})[name]
    print(table({name: lines}))
    if options.write and campaign.cpu_seconds is not None and not options.quick:
        known = lines_on(options.write)
        put_between(options.write, START, END, table({**known, name: with_kinds(known.get(name, []), lines)}))
    return int(any(row.findings for row in campaign.rows))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a sample of each campaign")
    parser.add_argument("--only", metavar="NAMES", help=f"some of: {', '.join(names())}")
    parser.add_argument("--landing", type=int, metavar="N", help="a sample of the campaigns that landing N owes")
    parser.add_argument("--long", type=int, metavar="N", help="all of the campaigns due, a sample of others")
    parser.add_argument("--kinds", metavar="NAMES", default="", help="of `hostile_files` these kinds of files alone")
    parser.add_argument("--seed", type=int, help="default: 0, with --long its number: each tries other faults")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="campaigns at a time")
    parser.add_argument(
        "--write",
        type=Path,
        metavar="PAGE",
        help="put the table between the markers of this page; rows of campaigns that did not run stay",
    )
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.seed = (options.long or 0) if options.seed is None else options.seed
    if options.inside:
        run_inside(options.inside, options.rows, quick=options.quick, seed=options.seed, kinds=options.kinds)
        return 0
    if options.kinds:
        return run_kinds(options)
    chosen = options.only.split(",") if options.only else names()
    if unknown := set(chosen) - set(names()):
        parser.error(f"no campaign {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    sampled = set(chosen) if options.quick else set()
    if options.landing is not None:
        chosen = due_samples(options.landing)
        sampled = set(chosen)
    elif options.long is not None:
        sampled = set(chosen) - due_whole(options.long)
    if options.write and sampled:
        parser.error("--write is for whole campaigns: leave --quick, --landing and --long out")
    campaigns = run_all(chosen, sampled=sampled, seed=options.seed, jobs=options.jobs)
    print(table(lines_of(campaigns)))
    if options.write:
        put_between(options.write, START, END, table({**lines_on(options.write), **lines_of(campaigns)}))
    return int(any(row.findings for campaign in campaigns.values() for row in campaign.rows))


if __name__ == "__main__":
    sys.exit(main())
