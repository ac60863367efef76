"""The files start what was assumed: flags, GPUs and replicas are read back by shlex, YAML and vLLM's own parser."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.hardware import load_devices
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.serving.deployment_files import deployment_files, write_deployment
from llm_perf_opt.serving.engine_command import EngineDeployment, engine_command
from llm_perf_opt.serving.engine_process.environment import checked_versions, find
from llm_perf_opt.serving.engine_settings import EngineSettings, SeenDevice

DEVICES = load_devices().devices
H100 = DEVICES["h100-sxm"]
HOSTILE = (
    "x; rm -rf ~",
    'two\nlines "quoted" \\ back',
    "$(touch owned) ${HOME} `id`",
    "a'b --port 1",
    "# : {} [] & * ! | > % @",
    "emoji \U0001f600 \u2028 \x85 \x7f é",
    "trtllm.yaml",
)
PLANS = {
    "tp1": ParallelPlan(),
    "tp8": ParallelPlan(tp=8),
    "tp2 pp2": ParallelPlan(tp=2, pp=2),
    "attention-dp8 with experts": ParallelPlan(attention_dp=8, ep=8),
    "fp8 cache": ParallelPlan(tp=4),
}


def settings(plan: ParallelPlan | None = None, **given: Any) -> EngineSettings:
    limits = {"max_sequences": 256, "max_batched_tokens": 8192, "max_model_tokens": 32768, "dtype": "bfloat16"}
    return EngineSettings(
        model="unused", device=SeenDevice.of(H100), plan=plan or ParallelPlan(), **{**limits, **given}
    )


def deployment(plan: ParallelPlan | None = None, **given: Any) -> EngineDeployment:
    given.setdefault("settings", settings(plan))
    return EngineDeployment(**{"model": "org/model-7B", "device": H100, **given})


def planned(name: str) -> EngineDeployment:
    cache = "fp8" if name == "fp8 cache" else "auto"
    return deployment(settings=settings(PLANS[name], cache_dtype=cache))


def words_of(script: str) -> list[str]:
    """The command as a shell reads it, without what a caller adds."""
    words = shlex.split(script, comments=True)
    start = words.index("exec") + 1
    assert words[-1] == "$@"
    return [word for word in words[start:-1] if word != "\n"]


def flags(words: list[str] | tuple[str, ...]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word] = None if following.startswith("--") else following
    return found


def unescaped(words: list[str]) -> list[str]:
    return [word.replace("$$", "$") for word in words]


@pytest.mark.parametrize("name", PLANS)
def test_the_script_has_every_flag_that_was_assumed(name: str) -> None:
    case = planned(name)
    words = words_of(deployment_files(case)["serve.sh"])
    assert words == list(engine_command(case))
    plan, found = PLANS[name], flags(words)
    assert words[:3] == ["vllm", "serve", "org/model-7B"]
    assert found["--tensor-parallel-size"] == str(plan.tp)
    assert found["--pipeline-parallel-size"] == str(plan.pp)
    assert found["--data-parallel-size"] == str(plan.attention_dp)
    assert ("--enable-expert-parallel" in found) == (plan.ep > 1)
    assert (found["--max-num-seqs"], found["--max-num-batched-tokens"]) == ("256", "8192")
    assert (found["--max-model-len"], found["--dtype"]) == ("32768", "bfloat16")
    assert found["--kv-cache-dtype"] == ("fp8" if name == "fp8 cache" else "auto")
    assert (found["--gpu-memory-utilization"], found["--port"]) == ("0.92", "8000")


def test_what_is_left_to_the_engine_has_no_flag() -> None:
    words = engine_command(
        deployment(settings=settings(max_sequences=None, max_batched_tokens=None, max_model_tokens=None))
    )
    assert not {"--max-num-seqs", "--max-num-batched-tokens", "--max-model-len", "--quantization"} & {*words}
    assert "None" not in words


def test_a_format_that_the_checkpoint_does_not_have_is_made_while_loading_or_said() -> None:
    assert flags(engine_command(deployment(weights="fp8")))["--quantization"] == "fp8"
    assert flags(engine_command(deployment(weights="fp8-block128")))["--quantization"] == "fp8_per_block"
    fp16 = deployment(weights="fp16")
    assert (flags(engine_command(fp16))["--dtype"], fp16.notes()) == ("float16", ())
    four_bits = deployment(weights="int4-g128")
    assert "--quantization" not in engine_command(four_bits)
    assert (
        "# The plan assumes weights in int4-g128: name a checkpoint that stores them so.\n"
        in (deployment_files(four_bits)["serve.sh"])
    )


def test_further_arguments_of_vllm_are_flags() -> None:
    more = {"enable_prefix_caching": False, "enforce_eager": True, "block_size": 32, "hf_overrides": {"a": [1]}}
    words = engine_command(deployment(settings=settings(more=more, cache_blocks=100, trust_remote_code=True)))
    assert {"--no-enable-prefix-caching", "--enforce-eager", "--trust-remote-code"} <= {*words}
    found = flags(words)
    assert (found["--block-size"], found["--num-gpu-blocks-override"]) == ("32", "100")
    assert json.loads(found["--hf-overrides"] or "") == {"a": [1]}


def test_sglang_takes_ranks_and_limits_of_all_groups_together() -> None:
    plan = ParallelPlan(tp=2, attention_dp=4, ep=8)
    case = deployment(settings=settings(plan, cache_dtype="fp8"), engine="sglang", weights="fp8")
    words = words_of(deployment_files(case)["serve.sh"])
    assert words[:5] == ["python3", "-m", "sglang.launch_server", "--model-path", "org/model-7B"]
    found = flags(words)
    assert (found["--tp-size"], found["--dp-size"], found["--ep-size"]) == ("8", "4", "8")
    assert found["--enable-dp-attention"] is None
    assert (found["--max-running-requests"], found["--chunked-prefill-size"]) == ("1024", "32768")
    assert (found["--kv-cache-dtype"], found["--quantization"], found["--context-length"]) == (
        "fp8_e4m3",
        "fp8",
        "32768",
    )
    plain = flags(engine_command(deployment(ParallelPlan(tp=8), engine="sglang")))
    assert (plain["--tp-size"], plain["--max-running-requests"]) == ("8", "256")
    assert not {"--dp-size", "--enable-dp-attention", "--ep-size", "--mem-fraction-static"} & plain.keys()


def test_tensorrt_llm_takes_what_has_no_flag_from_a_file() -> None:
    case = deployment(
        settings=settings(ParallelPlan(attention_dp=8, ep=8), cache_dtype="fp8", cache_bytes=40 * 10**9),
        engine="trtllm",
        weight_bytes=20 * 10**9,
    )
    files = deployment_files(case)
    found = flags(words_of(files["serve.sh"]))
    assert (found["--tp_size"], found["--pp_size"], found["--ep_size"]) == ("8", "1", "8")
    assert (found["--max_batch_size"], found["--max_num_tokens"], found["--max_seq_len"]) == ("256", "8192", "32768")
    share = int(1000 * 40e9 / (H100.memory_bytes - 20e9)) / 1000
    assert float(found["--kv_cache_free_gpu_memory_fraction"] or 0) == share
    assert found["--config"] == "trtllm.yaml"
    assert yaml.safe_load(files["trtllm.yaml"]) == {
        "dtype": "bfloat16",
        "enable_attention_dp": True,
        "kv_cache_config": {"dtype": "fp8", "free_gpu_memory_fraction": share},
    }
    config, workload, _ = yaml.safe_load_all(files["kubernetes.yaml"])
    assert yaml.safe_load(config["data"]["trtllm.yaml"]) == yaml.safe_load(files["trtllm.yaml"])
    assert "/trtllm.yaml" in workload["spec"]["template"]["spec"]["containers"][0]["args"]


def test_the_static_share_of_sglang_is_weights_and_cache_of_the_whole() -> None:
    case = deployment(settings=settings(cache_bytes=40 * 10**9), engine="sglang", weight_bytes=20 * 10**9)
    share = int(1000 * 60e9 / H100.memory_bytes) / 1000
    assert float(flags(engine_command(case))["--mem-fraction-static"] or 0) == share
    assert "The share of memory for weights and cache is left to the engine." not in case.notes()


@pytest.mark.parametrize(("engine", "source"), [("sglang", "SGLang 0.5.18"), ("trtllm", "TensorRT-LLM 1.3.0rc11")])
def test_a_file_says_which_version_its_flags_are_of(engine: Any, source: str) -> None:
    files = deployment_files(deployment(engine=engine))
    assert all(source in files[name] for name in ("serve.sh", "compose.yaml", "kubernetes.yaml"))


def test_compose_gives_every_replica_gpus_of_its_own() -> None:
    files = deployment_files(deployment(ParallelPlan(tp=2), replicas=3))
    services = yaml.safe_load(files["compose.yaml"])["services"]
    assert [*services] == ["replica-1", "replica-2", "replica-3", "balancer"]
    taken = []
    for name in ("replica-1", "replica-2", "replica-3"):
        service = services[name]
        (reserved,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert (reserved["driver"], reserved["capabilities"], len(reserved["device_ids"])) == ("nvidia", ["gpu"], 2)
        taken += reserved["device_ids"]
        assert service["image"] == f"vllm/vllm-openai:v{checked_versions()[0].version}"
        assert service["entrypoint"] == ["vllm", "serve"]
        assert "ports" not in service
    assert taken == ["0", "1", "2", "3", "4", "5"]
    assert services["balancer"]["ports"] == ["8000:8000"]
    assert "# For one machine with 6 GPUs." in files["compose.yaml"]
    for number in (1, 2, 3):
        assert f"    server replica-{number}:8000;\n" in files["nginx.conf"]
    assert files["nginx.conf"].count("{") == files["nginx.conf"].count("}")
    assert "CUDA_VISIBLE_DEVICES=4,5 sh serve.sh --port 8002\n" in files["serve.sh"]


def test_one_replica_needs_no_balancer() -> None:
    files = deployment_files(deployment(ParallelPlan(tp=4)))
    assert {*files} == {"serve.sh", "compose.yaml", "kubernetes.yaml"}
    services = yaml.safe_load(files["compose.yaml"])["services"]
    assert services["replica-1"]["ports"] == ["8000:8000"]
    assert services.keys() == {"replica-1"}


def test_kubernetes_asks_for_the_gpus_of_a_replica() -> None:
    files = deployment_files(deployment(ParallelPlan(attention_dp=8, ep=8), replicas=4, port=9000))
    workload, service = yaml.safe_load_all(files["kubernetes.yaml"])
    assert (workload["kind"], service["kind"]) == ("Deployment", "Service")
    assert workload["spec"]["replicas"] == 4
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": 9000}
    assert container["command"] == ["vllm", "serve"]
    assert container["args"][0] == "org/model-7B"
    assert workload["metadata"]["name"] == service["metadata"]["name"] == "llm-model-7b"
    assert workload["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
    assert service["spec"]["ports"] == [{"port": 9000, "targetPort": 9000}]


def test_gpus_of_amd_have_other_devices_and_another_image() -> None:
    files = deployment_files(deployment(ParallelPlan(tp=2), device=DEVICES["mi300x"], replicas=2))
    second = yaml.safe_load(files["compose.yaml"])["services"]["replica-2"]
    assert second["image"].startswith("vllm/vllm-openai-rocm:v")
    assert second["devices"] == ["/dev/kfd", "/dev/dri"]
    assert second["environment"] == {
        "HF_HOME": "/huggingface",
        "HF_TOKEN": "${HF_TOKEN:-}",
        "HIP_VISIBLE_DEVICES": "2,3",
    }
    workload, _ = yaml.safe_load_all(files["kubernetes.yaml"])
    assert workload["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {"amd.com/gpu": 2}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_stays_one_word(name: str, engine: Any) -> None:
    case = deployment(model=name, engine=engine, replicas=2)
    files = deployment_files(case)
    assert words_of(files["serve.sh"]) == list(engine_command(case))
    inside = list(engine_command(case, in_container=True))
    assert inside.count(name) == 1
    services = yaml.safe_load(files["compose.yaml"])["services"]
    assert unescaped([*services["replica-2"]["entrypoint"], *services["replica-2"]["command"]]) == inside
    workload = list(yaml.safe_load_all(files["kubernetes.yaml"]))[-2]
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    assert unescaped([*container["command"], *container["args"]]) == inside
    assert "$" not in "".join([*container["args"]]).replace("$$", "")
    assert name not in files["nginx.conf"]


@pytest.mark.parametrize("name", HOSTILE[:4], ids=range(4))
def test_a_shell_runs_nothing_but_the_command(name: str, tmp_path: Path) -> None:
    stand_in = tmp_path / "vllm"
    stand_in.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done\n', "utf-8")
    stand_in.chmod(0o700)
    case = deployment(model=name)
    write_deployment(tmp_path / "out", case, force=False)
    said = subprocess.run(
        ["sh", tmp_path / "out" / "serve.sh", "--port", "1"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert said.stdout.decode().split("\0")[:-1] == [*engine_command(case)[1:], "--port", "1"]
    assert {path.name for path in tmp_path.iterdir()} == {"vllm", "out"}


@pytest.mark.parametrize("name", ["", "  ", "--port", "-x", "a\0b", "a\udcffb"])
def test_a_name_that_cannot_be_a_word_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot take the model name"):
        deployment(model=name)


def test_a_folder_is_mounted_and_keeps_its_name_for_clients(tmp_path: Path) -> None:
    folder = str(tmp_path / "my $model")
    files = deployment_files(deployment(model=folder, is_folder=True))
    assert words_of(files["serve.sh"])[2] == folder
    service = yaml.safe_load(files["compose.yaml"])["services"]["replica-1"]
    assert service["command"][0] == "/model"
    mount = service["volumes"][1]
    assert (mount["source"].replace("$$", "$"), mount["target"], mount["read_only"]) == (folder, "/model", True)
    assert flags(unescaped(service["command"]))["--served-model-name"] == folder
    workload, _ = yaml.safe_load_all(files["kubernetes.yaml"])
    volumes = {one["name"]: one for one in workload["spec"]["template"]["spec"]["volumes"]}
    assert volumes["model"]["hostPath"]["path"] == folder


def test_a_device_of_somebodys_own_table_cannot_end_a_comment() -> None:
    files = deployment_files(deployment(device=replace(H100, id="x\nrm -rf ~\n#", name="y\nz")))
    assert "x_rm_-rf____" in files["serve.sh"]
    assert all("\nrm" not in text for text in files.values())


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"plan": ParallelPlan(fsdp=2)}, "fsdp"),
        ({"plan": ParallelPlan(tp=8, ep=4)}, "all 8 ranks"),
        ({"plan": ParallelPlan(tp=2, attention_dp=2), "engine": "trtllm"}, "tp must be 1"),
        ({"settings": settings(more={"a": 1}), "engine": "sglang"}, "arguments of vLLM"),
        ({"settings": settings(cache_dtype="int8_per_token_head"), "engine": "sglang"}, "is known of vLLM alone"),
        ({"device": DEVICES["mi300x"], "engine": "trtllm"}, "GPUs of NVIDIA"),
        ({"device": DEVICES["tpu-v5e"]}, "GPUs of NVIDIA"),
        ({"replicas": 70_000}, "at most 65,536"),
        ({"engine": "ollama"}, "known are vllm, sglang, trtllm"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        deployment(**given)


def test_a_replica_larger_than_a_machine_is_said() -> None:
    note = "A replica has 16 GPUs and a machine has 8: these files start a replica on one machine only."
    assert note in deployment(ParallelPlan(tp=16), gpus_per_machine=8).notes()
    assert deployment(ParallelPlan(tp=8), gpus_per_machine=8).notes() == ()


def test_files_are_not_overwritten_without_force(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "out"
    written = write_deployment(folder, deployment(replicas=2), force=False)
    assert {path.name for path in written} == {"serve.sh", "compose.yaml", "nginx.conf", "kubernetes.yaml"}
    assert {path.name for path in folder.iterdir()} == {path.name for path in written}
    (folder / "serve.sh").unlink()
    with pytest.raises(PerfOptError, match="Would overwrite"):
        write_deployment(folder, deployment(replicas=2), force=False)
    assert not (folder / "serve.sh").exists(), "nothing is written where one file is in the way"
    write_deployment(folder, deployment(replicas=2, port=9000), force=True)
    assert "--port 9000" in (folder / "serve.sh").read_text("utf-8")


PARSE = """
import json, sys
from vllm.entrypoints.cli.serve import make_arg_parser
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
names = ("model_tag tensor_parallel_size pipeline_parallel_size data_parallel_size enable_expert_parallel max_num_seqs "
    "max_num_batched_tokens max_model_len dtype quantization kv_cache_dtype gpu_memory_utilization port "
    "trust_remote_code").split()
for words in json.load(sys.stdin):
    found = parser.parse_args(words)
    assert found.quantization in (None, *QUANTIZATION_METHODS), found.quantization
    print("PARSED", json.dumps({name: getattr(found, name) for name in names}))
"""


@pytest.mark.slow  # loads vLLM in a process of its own
def test_vllm_reads_the_flags_as_they_were_meant() -> None:
    try:
        python = find().python
    except PerfOptError as error:
        pytest.skip(f"no vLLM here: {error.what}")
    formats = ("fp8", "mxfp4", "mxfp8")
    cases = [*map(planned, PLANS), *(deployment(weights=name, model=HOSTILE[1]) for name in formats)]
    commands = [words_of(deployment_files(case)["serve.sh"])[2:] for case in cases]
    said = subprocess.run(
        [python, "-c", PARSE], input=json.dumps(commands), capture_output=True, text=True, timeout=300, check=True
    )
    lines = [line.removeprefix("PARSED ") for line in said.stdout.splitlines() if line.startswith("PARSED ")]
    for case, line in zip(cases, lines, strict=True):
        plan, taken = case.settings.plan, case.settings
        assert json.loads(line) == {
            "model_tag": case.model,
            "tensor_parallel_size": plan.tp,
            "pipeline_parallel_size": plan.pp,
            "data_parallel_size": plan.attention_dp,
            "enable_expert_parallel": plan.ep > 1,
            "max_num_seqs": taken.max_sequences,
            "max_num_batched_tokens": taken.max_batched_tokens,
            "max_model_len": taken.max_model_tokens,
            "dtype": "bfloat16",
            "quantization": case.weights,
            "kv_cache_dtype": taken.cache_dtype,
            "gpu_memory_utilization": case.serving_engine.utilisation,
            "port": 8000,
            "trust_remote_code": False,
        }
