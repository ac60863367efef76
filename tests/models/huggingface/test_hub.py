"""Names that only the Hub knows, fetched by the real huggingface_hub from a Hub on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.models.huggingface.folders import LLAMA
from tests.models.huggingface.hub_server import REVISION, Hub, Repository, running_hub

pytest.importorskip("huggingface_hub", reason="it comes with transformers, an optional extra")

CONFIG = json.dumps(LLAMA).encode()
OWN_CODE = json.dumps({"model_type": "house_model", "auto_map": {"AutoModel": "modeling_house.House"}}).encode()
WEIGHTS = b"\0" * 4096
REPOSITORIES = {
    "house/llama": Repository(
        files={
            "config.json": CONFIG,
            "generation_config.json": b"{}",
            "model.safetensors": WEIGHTS,
            "pytorch_model.bin": WEIGHTS,
            "README.md": b"read me",
            "helper.py": b"raise SystemExit('ran')",
            "../above.py": b"pass",
            "below/deep.py": b"pass",
        }
    ),
    "house/own-code": Repository(
        files={"config.json": OWN_CODE, "layers.py": b"pass", "modeling_house.py": b"import sys"}
    ),
    "house/gated": Repository(files={"config.json": CONFIG}, gated=True),
    "house/cut": Repository(files={"config.json": CONFIG, "generation_config.json": b"{}"}, cut="config.json"),
    "house/cut-code": Repository(
        files={"config.json": OWN_CODE, "layers.py": b"pass", "modeling_house.py": b"import sys"},
        cut="modeling_house.py",
    ),
    "house/no-json": Repository(files={"config.json": b"<html>please log in</html>"}),
    "house/adapter": Repository(files={"adapter_config.json": b"{}"}),
    "house/huge": Repository(files={"config.json": CONFIG, "tokenizer_config.json": b" " * (2**26 + 1)}),
}
FIND = """
import json, logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s")
logging.getLogger("httpx2").setLevel(logging.WARNING)
logging.getLogger("httpx").setLevel(logging.WARNING)
from llm_perf_opt.core.errors import PerfOptError
from llm_perf_opt.models.huggingface.names import find_model
try:
    found = find_model(sys.argv[1], trust_remote_code="--trust" in sys.argv)
    answer = {"folder": str(found.folder), "source": found.source}
except PerfOptError as error:
    answer = {"what": error.what, "why": error.why, "fix": error.fix, "code": error.exit_code}
print(json.dumps({**answer, "torch": "torch" in sys.modules}))
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub(REPOSITORIES) as running:
        yield running


def world(hub: Hub, home: Path, **other: str) -> dict[str, str]:
    """The environment of a user who asks this Hub, with a cache of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    return {**kept, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", **other}


def find(hub: Hub, home: Path, name: str, *options: str, **other: str) -> tuple[dict[str, Any], str]:
    """What the name stands for, or the error, and what was said on stderr."""
    command = [sys.executable, "-c", FIND, name, *options]
    ran = subprocess.run(
        command, env=world(hub, home, **other), cwd=home, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout), ran.stderr


def fetched(hub: Hub) -> set[str]:
    """The files whose content was sent."""
    return {line.rpartition("/")[2] for line in hub.asked if line.startswith("GET ") and "/resolve/" in line}


def test_a_configuration_is_fetched_and_said_and_weights_are_never_asked_for(hub: Hub, tmp_path: Path) -> None:
    found, said = find(hub, tmp_path, "house/llama")
    assert json.loads((Path(found["folder"]) / "config.json").read_text()) == LLAMA
    assert found["source"] == f"{hub.url}, revision {REVISION[:12]}"
    assert found["torch"] is False
    assert f"Fetching from {hub.url}: generation_config.json, config.json of house/llama" in said
    assert fetched(hub) == {"config.json", "generation_config.json"}
    assert not [line for line in hub.asked if any(word in line for word in ("safetensors", ".bin", ".py", "README"))]


def test_the_next_run_asks_nobody_and_says_the_revision(hub: Hub, tmp_path: Path) -> None:
    find(hub, tmp_path, "house/llama")
    hub.asked.clear()
    found, said = find(hub, tmp_path, "house/llama")
    assert hub.asked == []
    assert said == ""
    assert found["source"] == f"the local Hugging Face cache, revision {REVISION[:12]}"
    offline, _ = find(hub, tmp_path, "house/llama", HF_HUB_OFFLINE="1")
    assert offline == found


def test_code_is_fetched_only_when_it_is_trusted(hub: Hub, tmp_path: Path) -> None:
    find(hub, tmp_path, "house/own-code")
    assert fetched(hub) == {"config.json"}
    found, said = find(hub, tmp_path, "house/own-code", "--trust")
    assert fetched(hub) == {"config.json", "layers.py", "modeling_house.py"}
    assert "layers.py, modeling_house.py, config.json" in said
    assert (Path(found["folder"]) / "modeling_house.py").is_file()


def test_only_code_beside_the_configuration_is_asked_for(hub: Hub, tmp_path: Path) -> None:
    find(hub, tmp_path, "house/llama", "--trust")
    assert fetched(hub) == {"config.json", "generation_config.json", "helper.py"}


def test_code_that_is_not_here_is_not_made_up_offline(hub: Hub, tmp_path: Path) -> None:
    find(hub, tmp_path, "house/own-code")
    found, _ = find(hub, tmp_path, "house/own-code", "--trust", HF_HUB_OFFLINE="1")
    assert "only its configuration is, and HF_HUB_OFFLINE forbids" in found["why"]


@pytest.mark.parametrize("token", [None, "hf_of_nobody"])
def test_a_gated_model_says_how_to_get_in(hub: Hub, tmp_path: Path, token: str | None) -> None:
    given = {} if token is None else {"HF_TOKEN": token}
    found, _ = find(hub, tmp_path, "house/gated", **given)
    assert found["what"] == f"house/gated is gated on {hub.url}."
    assert "hf auth login" in found["fix"]
    assert found["code"] == 1


def test_a_model_that_is_not_there_suggests_what_is(hub: Hub, tmp_path: Path) -> None:
    found, _ = find(hub, tmp_path, "Qwen/Qwen3-8")
    assert found["what"] == "There is no model named 'Qwen/Qwen3-8'."
    assert hub.url in found["why"]
    assert "Did you mean Qwen/Qwen3-8B" in found["fix"]
    assert found["code"] == 2


def test_offline_nobody_is_asked(hub: Hub, tmp_path: Path) -> None:
    found, _ = find(hub, tmp_path, "house/llama", HF_HUB_OFFLINE="1")
    assert hub.asked == []
    assert "HF_HUB_OFFLINE is set" in found["why"]


@pytest.mark.parametrize(("name", "options"), [("house/cut", ()), ("house/cut-code", ("--trust",))])
def test_half_a_download_is_an_error_and_leaves_nothing_that_is_used(
    hub: Hub, tmp_path: Path, name: str, options: tuple[str, ...]
) -> None:
    found, _ = find(hub, tmp_path, name, *options)
    assert found["what"] == f"The configuration of {name} could not be fetched from {hub.url}."
    again, _ = find(hub, tmp_path, name, *options, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set" in again["why"]
    hub.repositories[name].cut = None
    mended, _ = find(hub, tmp_path, name, *options)
    assert (Path(mended["folder"]) / "config.json").read_bytes() == hub.repositories[name].files["config.json"]


def test_what_is_no_json_is_refused_and_not_kept(hub: Hub, tmp_path: Path) -> None:
    found, _ = find(hub, tmp_path, "house/no-json")
    assert found["what"] == f"The config.json of house/no-json on {hub.url} cannot be read."
    again, _ = find(hub, tmp_path, "house/no-json", HF_HUB_OFFLINE="1")
    assert "it is not in" in again["why"]


@pytest.mark.parametrize(("name", "what"), [("house/adapter", "has no config.json"), ("house/huge", "is not fetched")])
def test_what_is_no_model_or_too_large_is_not_fetched(hub: Hub, tmp_path: Path, name: str, what: str) -> None:
    found, _ = find(hub, tmp_path, name)
    assert what in found["what"]
    assert fetched(hub) == set()


def test_no_server_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    found, _ = find(Hub({}, url="http://127.0.0.1:9"), tmp_path, "house/llama")
    assert found["what"] == "The configuration of house/llama could not be fetched from http://127.0.0.1:9."


@pytest.mark.slow
def test_a_model_of_the_hub_is_traced_by_its_name(hub: Hub, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "llm_perf_opt", "trace", "house/llama", "--prompt-tokens", "4"]
    ran = subprocess.run(
        command, env=world(hub, tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "house/llama: what runs" in ran.stdout
    assert f"Configuration of house/llama: {hub.url}" in " ".join(ran.stdout.split())
    assert not [line for line in hub.asked if "safetensors" in line]
