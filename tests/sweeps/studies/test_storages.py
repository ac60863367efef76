"""Results on storage that is no folder: whole files under their own names, none half, and a study that goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import llm_perf_opt as lpo
from llm_perf_opt.api.study import study
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.output_files import PREFIX
from llm_perf_opt.sweeps.studies import one_writer
from llm_perf_opt.sweeps.studies.parquet_store import MANIFEST, StudyStore, rows_table
from tests.sweeps.studies.made_studies import tiny_study

fsspec = pytest.importorskip("fsspec", reason="the extra `study` is not installed")

SMALL: dict[str, Any] = {"deployments": {"plan": ["one device"]}, "gpus": ["h100-sxm"]}
ALL = "select * from points order by inputs_hash, global_batch, asked_context"


def s3_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of moto's server, which speaks S3 over HTTP, reached by s3fs as any other."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = pytest.importorskip("moto.server", reason="moto's server is not installed").ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "made-up",
        "AWS_SECRET_ACCESS_KEY": "made-up",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "FSSPEC_S3_ENDPOINT_URL": f"http://{host}:{port}",
    }.items():
        monkeypatch.setenv(name, value)
    fsspec.config.set_conf_env(fsspec.config.conf)
    files = fsspec.filesystem("s3", endpoint_url=f"http://{host}:{port}", skip_instance_cache=True)
    bucket = f"studies-{uuid4().hex}"
    files.mkdir(bucket)
    yield f"s3://{bucket}/results"
    fsspec.config.conf.pop("s3", None)
    server.stop()


@pytest.fixture(params=["memory", "file", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address that `study --out` takes."""
    if request.param == "memory":
        yield f"memory://{uuid4().hex}/results"
    elif request.param == "file":
        yield f"file://{tmp_path}/results"
    else:
        yield from s3_bucket(monkeypatch)


def names(place: str) -> list[str]:
    """Every file at a place, by its path below it."""
    store = StudyStore(place)
    store.filesystem.invalidate_cache()
    return sorted(str(one).removeprefix(f"{store.path}/") for one in store.filesystem.find(store.path))


def contents(place: str, listed: list[str] | None = None) -> list[str]:
    """The digests in the names of the parts: those that are there, or those of a list."""
    found = names(place) if listed is None else listed
    return sorted(name.split("-")[4] for name in found if name.endswith(".parquet"))


def test_results_are_those_of_a_folder_and_go_on_where_they_stopped(place: str, tmp_path: Path) -> None:
    file = tiny_study(tmp_path, 2, **SMALL)
    first = study(file, out=place, workers=1)
    assert (first.computed, first.failed) == (2, 0)
    found = names(place)
    assert [name for name in found if name.endswith(MANIFEST)] == [f"study=tiny/{MANIFEST}"]
    assert len([name for name in found if name.endswith(".parquet")]) == 2
    assert not [name for name in found if PREFIX in name]

    lost = next(name for name in found if name.endswith(".parquet"))
    StudyStore(place).filesystem.rm(f"{StudyStore(place).path}/{lost}")
    again = study(file, out=place, workers=1)
    assert (again.computed, again.reused) == (1, 1)
    assert contents(place) == contents(place, found), "the same bytes under the name of another run"

    study(file, out=tmp_path / "folder", workers=1)
    assert lpo.ask(place, sql=ALL).to_arrow().equals(lpo.ask(tmp_path / "folder", sql=ALL).to_arrow())


def test_a_write_that_breaks_off_leaves_no_file_under_a_finished_name(place: str) -> None:
    def tables() -> Iterator[Any]:
        yield rows_table([{"status": "ok", "study": "tiny", "model": "m"}])
        raise OSError(28, os.strerror(28))

    store = StudyStore(place)
    with pytest.raises(Exception, match="No space left"):
        store.write("tiny", "m", "part-1-2", tables(), "0123abcd")
    assert store.parts("tiny") == {}
    assert not [name for name in names(place) if PREFIX in name]
    assert store.write("tiny", "m", "part-1-2", [rows_table([{"status": "ok"}])], "0123abcd")[1] == 0
    assert list(store.parts("tiny")) == ["part-1-2"]


def test_parts_of_two_runs_lie_beside_each_other_and_the_one_without_failures_is_taken(place: str) -> None:
    store = StudyStore(place)
    for status, run, failed in (("failed", "00000000", 1), ("ok", "ffffffff", 0)):
        assert store.write("tiny", "m", "part-1-2", [rows_table([{"status": status}])], run)[1] == failed
    first, second = store.parts("tiny")["part-1-2"]
    assert "-ffffffff-" in first and second.endswith("-failures.parquet")
    assert store.checked(first).rows == store.checked(second).rows == 1


def test_a_second_writer_is_refused_while_the_first_lives_and_takes_over_when_it_is_dead(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_writer, "BEAT_S", 0.2)
    monkeypatch.setattr(one_writer, "DEAD_S", 8.0)
    store = StudyStore(place)
    first, second = (one_writer.one_writer(store, "tiny", digit * 8) for digit in "01")
    with first, pytest.raises(PerfOptError, match="Another run is writing"), second:
        pass
    with one_writer.one_writer(store, "tiny", "22222222") as lease:  # released: at once
        if lease is None:
            return  # a lock of the system, which ends with its process
        lease._ended.set()  # as if it were killed: nobody renews it
        time.sleep(0.5)
        next_one = one_writer.one_writer(store, "tiny", "33333333")
        with next_one, pytest.raises(PerfOptError, match="taken this study over"):
            lease.require()
