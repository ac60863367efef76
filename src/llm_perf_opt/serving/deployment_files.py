"""Files that start a deployment as it was assumed: a shell script, Docker Compose with a load balancer, Kubernetes.

Names of models and folders come from anywhere. A shell word is quoted by `shlex`, a YAML value is always a text in
double quotes with every character escaped that is not plain ASCII, and a dollar sign is doubled where Compose and
Kubernetes would put a variable in its place. Nothing but figures and words of this file stands in a comment.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_perf_opt.core.output_files import make_folder, require_free, write_together
from llm_perf_opt.core.units import format_number_of
from llm_perf_opt.serving.engine_command import (
    FLAG_SOURCES,
    FOLDER_IN_CONTAINER,
    TRTLLM_FILE,
    EngineDeployment,
    engine_command,
    trtllm_options,
)

SCRIPT, COMPOSE, NGINX, KUBERNETES = "serve.sh", "compose.yaml", "nginx.conf", "kubernetes.yaml"
_KEY = re.compile(r"[A-Za-z0-9_./-]+")
_HUB_CACHE = "/huggingface"  # whoever the container's user is
_HUB = {"HF_HOME": _HUB_CACHE, "HF_TOKEN": "${HF_TOKEN:-}"}
_START_S = 1800  # large weights take minutes to load
_PROGRAM_WORDS = {"vllm": 2, "sglang": 3, "trtllm": 1}  # of a command, before its arguments
_SHARED_EVENLY = "Replicas get requests in turn (round robin)."


def deployment_files(deployment: EngineDeployment) -> dict[str, str]:
    """The text of every file by its name."""
    files = {
        SCRIPT: _script(deployment),
        COMPOSE: _compose(deployment),
        KUBERNETES: _kubernetes(deployment),
    }
    if deployment.replicas > 1:
        files[NGINX] = _nginx(deployment)
    if options := trtllm_options(deployment):
        files[TRTLLM_FILE] = _yaml_text(options)
    return files


def write_deployment(folder: Path, deployment: EngineDeployment, *, force: bool) -> tuple[Path, ...]:
    """Write all of them, or none: refused before anything is written where one would be overwritten without `force`."""
    files = {folder / name: text for name, text in deployment_files(deployment).items()}
    require_free(files, force=force)
    make_folder(folder)
    write_together({path: [text.encode()] for path, text in files.items()})
    return tuple(files)


def _remarks(deployment: EngineDeployment, *more: str) -> str:
    """Comments for the head of a file."""
    lines = (
        f"{deployment.engine} {deployment.version}. Flags: {FLAG_SOURCES[deployment.engine]}.",
        f"{format_number_of(deployment.replicas, 'replica')} of {format_number_of(deployment.gpus, 'GPU')} "
        f"({_plain(deployment.device.id)}); plan of a replica: {deployment.settings.plan.describe()}.",
        *deployment.notes(),
        *more,
    )
    return "".join(f"# {line}\n" for line in lines)


def _plain(text: str) -> str:
    """A name of somebody's own table in a comment: what could end the line is left out."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text)


def _gpu_numbers(deployment: EngineDeployment, replica: int) -> list[str]:
    return [str(replica * deployment.gpus + number) for number in range(deployment.gpus)]


# The script.


def _script(deployment: EngineDeployment) -> str:
    first, *rest = _shell_lines(engine_command(deployment))
    command = " \\\n".join([f"exec {first}", *(f"  {line}" for line in rest), '  "$@"'])
    move = 'cd -- "$(dirname -- "$0")"\n' if trtllm_options(deployment) else ""
    return f"#!/bin/sh\n{_remarks(deployment, *_script_remarks(deployment))}set -eu\n{move}{command}\n"


def _script_remarks(deployment: EngineDeployment) -> list[str]:
    """How the script starts every replica."""
    if deployment.replicas == 1:
        return [f"Start it: sh {SCRIPT}"]
    variable = "HIP_VISIBLE_DEVICES" if deployment.device.vendor == "AMD" else "CUDA_VISIBLE_DEVICES"
    return [
        "One replica. Start each with GPUs and a port of its own, and share requests between them:",
        *(
            f"  {variable}={','.join(_gpu_numbers(deployment, replica))} sh {SCRIPT} --port {deployment.port + replica}"
            for replica in range(min(deployment.replicas, 8))
        ),
        *(["  and so on"] if deployment.replicas > 8 else []),
    ]


def _shell_lines(words: Sequence[str]) -> list[str]:
    """A flag and its value on one line; the program and the model on the first."""
    lines: list[str] = []
    for word in words:
        if lines and not word.startswith("--"):
            lines[-1] += f" {shlex.quote(word)}"
        else:
            lines.append(shlex.quote(word))
    return lines


# YAML: block style, texts in double quotes.


def _yaml_text(value: Mapping[str, object]) -> str:
    return "\n".join(_yaml_lines(value)) + "\n"


def _yaml_lines(value: object) -> list[str]:
    if isinstance(value, Mapping) and value:
        return [line for key, item in value.items() for line in _yaml_entry(key, item)]
    if isinstance(value, list | tuple) and value:
        return [line for item in value for line in _indented("- ", _yaml_lines(item))]
    return [_scalar(value)]


def _yaml_entry(key: str, item: object) -> list[str]:
    assert _KEY.fullmatch(key), key
    lines = _yaml_lines(item)
    if isinstance(item, Mapping | list | tuple) and item:
        return [f"{key}:", *(f"  {line}" for line in lines)]
    return [f"{key}: {lines[0]}"]


def _indented(mark: str, lines: list[str]) -> list[str]:
    return [f"{mark}{lines[0]}", *(" " * len(mark) + line for line in lines[1:])]


def _scalar(value: object) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    return '"' + "".join(map(_escaped, value)) + '"'


def _escaped(character: str) -> str:
    """The character as YAML writes it; JSON's surrogate pairs would be two characters there."""
    code = ord(character)
    if 0x20 <= code < 0x7F:
        return f"\\{character}" if character in '"\\' else character
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _literal(words: Sequence[str]) -> list[str]:
    """Words in which Compose and Kubernetes are to replace nothing."""
    return [word.replace("$", "$$") for word in words]


def _program_and_arguments(deployment: EngineDeployment) -> tuple[list[str], list[str]]:
    words = _literal(engine_command(deployment, in_container=True))
    count = _PROGRAM_WORDS[deployment.engine]
    return words[:count], words[count:]


# Docker Compose.


def _compose(deployment: EngineDeployment) -> str:
    count = deployment.replicas
    services = {f"replica-{number + 1}": _compose_replica(deployment, number) for number in range(count)}
    if count > 1:
        services["balancer"] = {
            "image": "nginx:stable",
            "ports": [f"{deployment.port}:{deployment.port}"],
            "volumes": [f"./{NGINX}:/etc/nginx/nginx.conf:ro"],
            "depends_on": {name: {"condition": "service_healthy"} for name in list(services)},
        }
    gpus = f"For one machine with {count * deployment.gpus} GPUs. Start: docker compose up"
    shared = [f"{_SHARED_EVENLY} nginx does it: {NGINX}."] if count > 1 else []
    return _remarks(deployment, gpus, *shared) + _yaml_text({"services": services})


def _compose_replica(deployment: EngineDeployment, replica: int) -> dict[str, object]:
    program, arguments = _program_and_arguments(deployment)
    numbers = _gpu_numbers(deployment, replica)
    address = f"http://localhost:{deployment.port}/health"
    volumes: list[object] = [f"${{HOME}}/.cache/huggingface:{_HUB_CACHE}"]
    if deployment.is_folder:
        source = _literal([deployment.source])[0]
        volumes.append({"type": "bind", "source": source, "target": FOLDER_IN_CONTAINER, "read_only": True})
    if trtllm_options(deployment):
        volumes.append(f"./{TRTLLM_FILE}:/{TRTLLM_FILE}:ro")
    return {
        "image": deployment.image,
        "entrypoint": program,
        "command": arguments,
        "ipc": "host",
        "environment": {**_HUB, **_compose_visible(deployment, numbers)},
        "volumes": volumes,
        **({} if deployment.replicas > 1 else {"ports": [f"{deployment.port}:{deployment.port}"]}),
        **_compose_gpus(deployment, numbers),
        "healthcheck": {
            "test": ["CMD", "python3", "-c", f"import urllib.request as r; r.urlopen('{address}')"],
            "interval": "10s",
            "retries": 3,
            "start_period": f"{_START_S}s",
        },
    }


def _compose_visible(deployment: EngineDeployment, numbers: list[str]) -> dict[str, str]:
    """Compose hands all GPUs of AMD to a container; the runtime takes the ones that it is told."""
    return {"HIP_VISIBLE_DEVICES": ",".join(numbers)} if deployment.device.vendor == "AMD" else {}


def _compose_gpus(deployment: EngineDeployment, numbers: list[str]) -> dict[str, object]:
    if deployment.device.vendor == "AMD":
        return {
            "devices": ["/dev/kfd", "/dev/dri"],
            "group_add": ["video"],
            "security_opt": ["seccomp=unconfined"],
        }
    reserved = {"driver": "nvidia", "device_ids": numbers, "capabilities": ["gpu"]}
    return {"deploy": {"resources": {"reservations": {"devices": [reserved]}}}}


def _nginx(deployment: EngineDeployment) -> str:
    servers = "".join(f"    server replica-{number + 1}:{deployment.port};\n" for number in range(deployment.replicas))
    return (
        f"# {_SHARED_EVENLY}\n"
        "events {}\n"
        "http {\n"
        f"  upstream replicas {{\n{servers}  }}\n"
        "  server {\n"
        f"    listen {deployment.port};\n"
        "    client_max_body_size 100m;  # images are part of a request\n"
        "    location / {\n"
        "      proxy_pass http://replicas;\n"
        "      proxy_http_version 1.1;\n"
        '      proxy_set_header Connection "";\n'
        "      proxy_buffering off;  # tokens are streamed\n"
        "      proxy_read_timeout 1h;\n"
        "    }\n"
        "  }\n"
        "}\n"
    )


# Kubernetes.


def _kubernetes(deployment: EngineDeployment) -> str:
    name = _label(deployment.model)
    parts: list[dict[str, object]] = [_workload(deployment, name), _service(deployment, name)]
    if options := trtllm_options(deployment):
        data = {TRTLLM_FILE: _yaml_text(options)}
        parts.insert(0, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
    remarks = _remarks(
        deployment,
        f"Start: kubectl apply -f {KUBERNETES}",
        *(["A Service picks a replica for every connection, at random: not in turn."] * (deployment.replicas > 1)),
        *(["Every node must have the folder of the model."] * deployment.is_folder),
    )
    return remarks + "---\n".join(_yaml_text(part) for part in parts)


def _label(model: str) -> str:
    """A name that Kubernetes takes, from what of the model's name it takes."""
    words = re.sub(r"[^a-z0-9]+", "-", Path(model).name.lower()).strip("-")[:40].strip("-")
    return f"llm-{words or 'model'}"


def _workload(deployment: EngineDeployment, name: str) -> dict[str, object]:
    labels = {"app": name}
    volumes: list[dict[str, object]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "hub", "emptyDir": {}},
    ]
    if deployment.is_folder:
        volumes.append({"name": "model", "hostPath": {"path": deployment.source, "type": "Directory"}})
    if trtllm_options(deployment):
        volumes.append({"name": "options", "configMap": {"name": name}})
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": deployment.replicas,
            "selector": {"matchLabels": labels},
            "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},  # no GPUs wait for one more
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "enableServiceLinks": False,  # a service named vllm would set VLLM_PORT
                    "containers": [_container(deployment)],
                    "volumes": volumes,
                },
            },
        },
    }


def _container(deployment: EngineDeployment) -> dict[str, object]:
    program, arguments = _program_and_arguments(deployment)
    resource = "amd.com/gpu" if deployment.device.vendor == "AMD" else "nvidia.com/gpu"
    probe = {"httpGet": {"path": "/health", "port": deployment.port}, "periodSeconds": 10}
    mounts: list[dict[str, object]] = [
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "hub", "mountPath": _HUB_CACHE},
    ]
    if deployment.is_folder:
        mounts.append({"name": "model", "mountPath": FOLDER_IN_CONTAINER, "readOnly": True})
    if trtllm_options(deployment):
        mounts.append({"name": "options", "mountPath": f"/{TRTLLM_FILE}", "subPath": TRTLLM_FILE})
    token = {"secretKeyRef": {"name": "hf-token", "key": "token", "optional": True}}
    return {
        "name": deployment.engine,
        "image": deployment.image,
        "command": program,
        "args": arguments,
        "ports": [{"containerPort": deployment.port}],
        "env": [{"name": "HF_HOME", "value": _HUB_CACHE}, {"name": "HF_TOKEN", "valueFrom": token}],
        "resources": {"limits": {resource: deployment.gpus}},
        "startupProbe": {**probe, "failureThreshold": _START_S // 10},
        "readinessProbe": probe,
        "volumeMounts": mounts,
    }


def _service(deployment: EngineDeployment, name: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": deployment.port, "targetPort": deployment.port}]},
    }
