"""What studies read: their files and overrides, the store with its list of parts, leases, and questions to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import llm_perf_opt as lpo
from llm_perf_opt.analyses.studies.questions import find_question
from llm_perf_opt.analyses.studies.tasks import study_tasks
from llm_perf_opt.api.study import installed_versions
from llm_perf_opt.core.sealing import sealed_text, split_seal
from llm_perf_opt.core.study import read_study
from llm_perf_opt.labs.study import one_writer
from llm_perf_opt.labs.study.parquet_store import MANIFEST, StudyStore, part_name, part_stem, read_manifest
from llm_perf_opt.labs.study.sql import answer, connection, require_select
from scripts.campaigns.one_kind import Kind, as_text, at
from scripts.campaigns.verbs import CONFIG, STUDY

STUDY_FILE = b"""name: tiny
models: [org/name, tiny]
workload: {global_batch: 2, context: 1k..8k, generated_tokens: 16}
deployments: {plan: [one device, tp2], weights: [checkpoint, fp8]}
devices: [h100-sxm]
prices: {h100-sxm: 2.5}
"""
ALL = "select * from points order by inputs_hash, global_batch, asked_context"
SQL = (
    "select model, count(*) as n, min(tpot_s) from points where global_batch > 1 group by model order by n desc limit 9"
)
QUESTION = "cheapest plan under 50 ms TPOT for tiny on h100-sxm with fp8"


def study_kinds(folder: Path) -> list[Kind]:
    """All of them, on the results of one study of a tiny model."""
    place = folder / "studied"
    (place / "tiny").mkdir(parents=True)
    (place / "tiny" / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    (place / "study.yaml").write_text(json.dumps(STUDY), "utf-8")
    lpo.study(place / "study.yaml", out=place / "results", workers=1)
    return [*_declared(place), *_parts(place / "results"), *_manifests(place / "results"), *_asked(place), _lease()]


def _declared(place: Path) -> Iterator[Kind]:
    def declared(file: Path) -> object:
        found = read_study(file)
        return study_tasks(found, installed_versions(is_replayed=bool(found.traffics)))

    yield Kind(name="study file", good=STUDY_FILE, read=at(place / "other.yaml", declared), is_json=False)

    def overridden(text: str) -> object:
        return read_study(place / "study.yaml", [text])

    yield Kind(
        name="override of a study", good=b"workload.global_batch=1,8", read=partial(as_text, overridden), is_json=False
    )


def _points(results: Path) -> object:
    """Every point; of a text, since NaN is not equal to itself."""
    with connection(StudyStore(str(results)), ("tiny",)) as opened:
        return repr(answer(opened, ALL).table.to_pylist())


def _points_with(results: Path, file: Path, good: bytes, raw: bytes) -> object:
    """The points while a file of the study holds other bytes."""
    try:
        file.write_bytes(raw)
        return _points(results)
    finally:
        file.write_bytes(good)


def _parts(results: Path) -> Iterator[Kind]:
    """A part as it was written, and one that somebody changed who made its name and the list fit again."""
    listed = results / "study=tiny" / MANIFEST
    manifest = read_manifest(listed.read_bytes())
    stem, part = next(iter(manifest.parts.items()))
    file = listed.parent / part.file
    good, written = file.read_bytes(), listed.read_bytes()

    def made_to_fit(raw: bytes) -> object:
        digest = hashlib.sha256(raw).hexdigest()
        name = part_name(stem, manifest.run, digest, failed=False)
        other = replace(part, file=f"{Path(part.file).parent}/{name}", sha256=digest)
        try:
            (file.parent / name).write_bytes(raw)
            listed.write_bytes(replace(manifest, parts={**manifest.parts, stem: other}).text())
            return _points(results)
        finally:
            if name != file.name:
                (file.parent / name).unlink()
            listed.write_bytes(written)

    assert part_stem(file.name) == stem, "it is named by its task"
    made = partial(Kind, good=good, is_json=False, one_in=2)  # a database is opened for each
    yield made(name="part of a study", read=partial(_points_with, results, file, good), is_sealed=True)
    yield made(name="part of a study, with a new digest", read=made_to_fit)


def _manifests(results: Path) -> Iterator[Kind]:
    listed = results / "study=tiny" / MANIFEST
    good = listed.read_bytes()

    read = partial(_points_with, results, listed, good)

    def sealed_anew(raw: bytes) -> object:
        try:
            return read(sealed_text(raw.decode("utf-8", "replace")).encode())
        except ValueError:  # no object, on which there is no place for a seal
            return read(raw)

    yield Kind(name="manifest of a study", good=good, read=read, is_sealed=True, is_json=False, one_in=2)
    yield Kind(name="manifest of a study, sealed anew", good=split_seal(good)[0], read=sealed_anew, one_in=2)


def _asked(place: Path) -> Iterator[Kind]:
    """Texts of `ask`, answered by the database as that does it."""

    def selected(text: str) -> object:
        require_select(text)
        with connection(StudyStore(str(place / "results")), ("tiny",)) as opened:
            return repr(answer(opened, text).rows())

    def named(text: str) -> object:
        found = find_question(text)
        with connection(StudyStore(str(place / "results")), ("tiny",)) as opened:
            return repr(answer(opened, found.sql, found.parameters).rows())

    asked: dict[str, tuple[str, Callable[[str], object]]] = {
        "line of SQL": (SQL, selected),
        "question to a study": (QUESTION, named),
    }
    for name, (good, read) in asked.items():
        yield Kind(name=name, good=good.encode(), read=partial(as_text, read), is_json=False, one_in=2)


def _lease() -> Kind:
    """Of a run that is dead, whatever it holds: the next run takes the study over."""
    store = StudyStore("memory://leases")
    folder = store.folder("tiny")

    def taken(raw: bytes) -> object:
        before, one_writer.DEAD_S = one_writer.DEAD_S, 0.0
        files = store.filesystem
        try:
            if files.exists(folder):
                files.rm(folder, recursive=True)
            files.makedirs(folder)
            files.pipe_file(f"{folder}/_lease-00000001.json", raw)
            return one_writer._taken(store, folder, "01234567").number
        finally:
            one_writer.DEAD_S = before

    good = one_writer.Lease(store=store, folder=folder, number=1, run="89abcdef").text()
    return Kind(name="lease of a study", good=good, read=taken)
