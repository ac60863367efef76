"""Files are written whole, durably, and leave nothing behind; temporary names of dead processes are removed."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_perf_opt.core import output_files
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.core.output_files import (
    free_file,
    make_folder,
    move_whole,
    remove_left_behind,
    require_free,
    scratch_folder,
    temporary_path,
    write_together,
    write_whole,
)


def test_the_file_is_on_the_disk_before_it_gets_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, rename = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        done.append("sync folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync file")
        sync(descriptor)

    def renamed(self: Path, target: Path) -> Path:
        done.append("rename")
        assert self.read_bytes() == b"whole"
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    write_whole(tmp_path / "file", [b"who", b"le"])
    assert done == ["sync file", "rename", "sync folder"]
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize(
    ("number", "fix"),
    [(errno.ENOSPC, "free some disk space"), (errno.EIO, "another --out"), (errno.EACCES, "may write to")],
)
def test_a_step_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int, fix: str
) -> None:
    (tmp_path / "file").write_text("old")

    def fails(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os if step == "fsync" else Path, step, fails)
    with pytest.raises(PerfOptError, match="Cannot write") as error:
        write_whole(tmp_path / "file", [b"new"])
    assert error.value.why == os.strerror(number)
    assert fix in error.value.fix
    assert error.value.exit_code == 1
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("file", "old")]


def test_of_files_that_belong_together_none_is_new_when_one_cannot_be_written(tmp_path: Path) -> None:
    def breaks() -> Iterator[bytes]:
        yield b"half"
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "a").write_text("old")
    with pytest.raises(PerfOptError, match=r"Cannot write .*b"):
        write_together({tmp_path / "a": [b"new"], tmp_path / "b": breaks()})
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a", "old")]


def test_a_file_system_without_fsync_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(descriptor: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuses)
    write_whole(tmp_path / "file", [b"new"])
    assert (tmp_path / "file").read_text() == "new"


def test_a_name_of_the_longest_kind_is_written_and_a_longer_one_is_wrong_usage(tmp_path: Path) -> None:
    write_whole(tmp_path / ("x" * 255), [b"new"])
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(PerfOptError, match="too long") as error:
        free_file(tmp_path / ("x" * 256), force=True)
    assert (error.value.exit_code, error.value.fix) == (2, "choose a shorter name")


def test_a_folder_is_never_replaced_by_a_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(PerfOptError, match="Is a directory") as error:
        require_free([tmp_path / "folder"], force=True)
    assert error.value.exit_code == 2


def test_a_folder_that_cannot_be_written_to_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(self: Path, **options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "touch", refuses)  # root may write to a folder whatever its permissions
    with pytest.raises(PerfOptError, match="Cannot write to the folder") as error:
        make_folder(tmp_path / "out")
    assert error.value.why == "Read-only file system"


def test_a_link_stays_a_link_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    write_whole(tmp_path / "link", [b"new"])
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "file").read_text() == "new"
    assert len(list((tmp_path / "there").iterdir())) == 1


def test_a_device_is_written_to_and_not_replaced() -> None:
    before = Path(os.devnull).stat().st_mode
    require_free([Path(os.devnull)], force=False)
    write_whole(Path(os.devnull), [b"gone"])
    assert Path(os.devnull).stat().st_mode == before
    if Path("/dev/full").exists():
        with pytest.raises(PerfOptError, match="No space left"):
            write_whole(Path("/dev/full"), [b"gone"])


def test_a_temporary_folder_that_cannot_be_made_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PerfOptError, match="Cannot make a temporary folder in ") as refused:
        scratch_folder(tmp_path / "absent").__enter__()
    assert refused.value.why == "No such file or directory"
    assert "free some disk space" in refused.value.fix


def test_a_finished_file_is_moved_into_place(tmp_path: Path) -> None:
    with scratch_folder(tmp_path) as folder:
        (folder / "made").write_text("new")
        move_whole(folder / "made", tmp_path / "file")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("file", "new")]
    with pytest.raises(PerfOptError, match="Cannot write"):
        move_whole(tmp_path / "missing", tmp_path / "file")


KILLED = """
import os, signal, sys
from pathlib import Path
from llm_perf_opt.core.output_files import scratch_folder, temporary_path
with temporary_path(Path(sys.argv[1])) as file, scratch_folder(Path(sys.argv[1])) as folder:
    file.write_text("half")
    (folder / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_goes_with_the_next_write_and_what_a_live_one_has_stays(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=60)
    assert len(list(tmp_path.iterdir())) == 2
    with temporary_path(tmp_path) as mine:
        mine.write_text("being written")
        write_whole(tmp_path / "file", [b"new"])
        assert sorted(tmp_path.iterdir()) == sorted([mine, tmp_path / "file"])
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_an_id_that_was_given_out_again_does_not_keep_a_file(tmp_path: Path) -> None:
    with temporary_path(tmp_path) as mine:
        machine, pid, start, number = (
            mine.name.removeprefix(output_files.PREFIX).removesuffix(output_files.SUFFIX).split("-")
        )
    other_start = f"{int(start, 16) ^ 1:08x}"
    earlier = tmp_path / f"{output_files.PREFIX}{machine}-{pid}-{other_start}-{number}{output_files.SUFFIX}"
    elsewhere = tmp_path / f"{output_files.PREFIX}{int(machine, 16) ^ 1:08x}-{pid}-{other_start}-0{output_files.SUFFIX}"
    other_name = tmp_path / f"{output_files.PREFIX}notes{output_files.SUFFIX}"
    for file in (earlier, elsewhere, other_name):
        file.touch()
    remove_left_behind(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([elsewhere, other_name])
    os.utime(elsewhere, (0, 0))  # of another machine, and untouched for long
    remove_left_behind(tmp_path)
    assert list(tmp_path.iterdir()) == [other_name]


def test_a_link_in_place_of_a_temporary_folder_is_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with temporary_path(tmp_path) as path:
        path.symlink_to(tmp_path / "mine")
    assert not path.is_symlink()
    assert (tmp_path / "mine" / "file").exists()


def test_nothing_but_this_file_writes_results() -> None:
    """Whoever writes in another way must say here why that is safe."""
    allowed = {
        "core/output_files.py",
        "measurements/profile/run_folder.py",  # its lock, and `write_text` of its own
        "api/profile.py",  # through the folder of the run
        "api/profile_preparation.py",  # likewise
        "measurements/timed/operator_pass.py",  # a setting of the kernel
        "cli/profile_config.py",  # notes in a temporary folder
        "harness/profiler_details.py",  # a temporary folder
        "exports/export_source.py",  # memory
        "exports/onnx_trial.py",  # where it is told: temporary folders
        "core/run_lock.py",  # the lock itself, which holds no results
        "sweeps/studies/bounded_sql.py",  # a temporary folder, for the answer of another process
        "sweeps/studies/parquet_store.py",  # a temporary name that is then moved, on any storage
        "serving/engine_process/process.py",  # a temporary folder, for messages and the log of another process
        "timing/kernels/added_tables.py",  # a scratch folder, which is then named
        "__main__.py",  # streams
    }
    root = Path(output_files.__file__).parent.parent
    words = (".write_text(", ".write_bytes(", '.open("w', '.open("a', '.open("x', "os.replace(", "tempfile.")
    words += ("export_chrome_trace(", "torch.export.save(", "converted.save(")  # libraries that write by themselves
    found = {
        str(file.relative_to(root))
        for file in root.rglob("*.py")
        if any(word in file.read_text("utf-8") for word in words)
    }
    assert found <= allowed
