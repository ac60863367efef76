"""A local Hugging Face folder: its configuration, and the class that runs it. No weights are looked for or read."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.missing_packages import cannot_run, import_failure
from llm_perf_opt.core.plain_text import error_text
from llm_perf_opt.core.reading import MODEL_FILE, naming_file, read_foreign_json

# Heads in the order of preference: what the model is published for, before what can be put on top of it.
HEADS = (
    "MULTIMODAL_LM", "IMAGE_TEXT_TO_TEXT", "VISION_2_SEQ", "TEXT_TO_WAVEFORM", "TEXT_TO_SPECTROGRAM",
    "SPEECH_SEQ_2_SEQ", "SEQ_TO_SEQ_CAUSAL_LM", "CAUSAL_LM", "RETRIEVAL", "CTC", "RNNT", "TDT",
    "UNIVERSAL_SEGMENTATION", "INSTANCE_SEGMENTATION", "SEMANTIC_SEGMENTATION", "OBJECT_DETECTION",
    "ZERO_SHOT_OBJECT_DETECTION", "DEPTH_ESTIMATION", "MASK_GENERATION", "MASKED_LM",
)  # fmt: skip


def class_names(model_type: str) -> tuple[str, ...]:
    """Every class registered for `model_type`, the preferred one first."""
    tables = _tables()
    names = [name for table in tables if (name := table.get(model_type)) is not None]
    flat = [n for name in names for n in ([name] if isinstance(name, str) else name)]
    return tuple(dict.fromkeys(flat))


def _tables() -> list[dict[str, Any]]:
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    preferred = [f"MODEL_FOR_{head}_MAPPING_NAMES" for head in HEADS]
    others = [name for name in dir(auto) if name.startswith("MODEL_FOR_") and name.endswith("_MAPPING_NAMES")]
    order = dict.fromkeys([*preferred, "MODEL_MAPPING_NAMES", *others])
    return [getattr(auto, name) for name in order if hasattr(auto, name)]


def model_types() -> tuple[str, ...]:
    """Every model type that has a model class in the installed transformers."""
    return tuple(sorted({model_type for table in _tables() for model_type in table}))


def load_class(model_type: str, name: str) -> Any:
    """The class itself: from the package's front page, or from the model's own folder when it is not exported."""
    transformers = importlib.import_module("transformers")
    if (model_class := getattr(transformers, name, None)) is not None:
        return model_class
    naming = importlib.import_module("transformers.models.auto.configuration_auto")
    folder = naming.model_type_to_module_name(model_type)
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    if (model_class := getattr(module, name, None)) is not None:
        return model_class
    raise PerfOptError(
        f"transformers {transformers.__version__} names the class {name!r} but does not export it.",
        why=f"neither the package nor the folder of {model_type!r} has it",
        fix="use another version of transformers",
    )


# Which entry of `auto_map` names the model: what a language model is published under, before the bare model.
AUTO_CLASSES = (
    "AutoModelForMultimodalLM", "AutoModelForImageTextToText", "AutoModelForVision2Seq", "AutoModelForCausalLM",
    "AutoModelForSpeechSeq2Seq", "AutoModelForSeq2SeqLM", "AutoModel", "AutoModelForMaskedLM",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A folder with a `config.json`, read but not yet believed."""

    path: Path
    fields: Mapping[str, Any]
    name: str | None = None  # of a model that was found by its name

    @property
    def shown(self) -> str:
        """What messages call it: the name it was found by, or the folder itself."""
        return str(self.path) if self.name is None else self.name

    @property
    def model_type(self) -> str:
        """What the folder says it is, or an empty string."""
        value = self.fields.get("model_type")
        return value if isinstance(value, str) else ""

    @property
    def transformers_version(self) -> str | None:
        """The version that wrote the configuration, where it says so."""
        value = self.fields.get("transformers_version")
        return value if isinstance(value, str) else None

    @property
    def code_map(self) -> Mapping[str, str]:
        """Auto class -> `file.Class` of the folder's own code, the first of a list; empty when it has none."""
        return dict(reversed(list(code_names(self.fields.get("auto_map")))))


def read_folder(path: Path, name: str | None = None) -> ModelFolder:
    """Read `config.json`; anything but a JSON object with a model type or code of its own is refused."""
    file = path / "config.json"
    if not file.is_file():
        raise UsageError(
            f"{path} has no config.json.",
            why="a Hugging Face model folder is recognised by it",
            fix="point at the folder that holds config.json; weights are not needed",
        )
    fields = read_foreign_json(file, MODEL_FILE)
    folder = ModelFolder(path=path, fields=fields if isinstance(fields, dict) else {}, name=name)
    require_identity(file, folder.fields)
    if not folder.model_type and not folder.code_map:
        raise UsageError(
            f"{file} does not say what it configures.",
            why="it has neither a model_type nor an auto_map",
            fix="use the config.json that was published with the model",
        )
    return folder


def load_config(folder: ModelFolder, trust_remote_code: bool) -> Any:
    """The configuration object, by the folder's own class only if its code is trusted."""
    transformers = import_transformers()
    _refuse_untrusted(folder, trust_remote_code)
    _refuse_unknown_type(folder)
    try:
        return transformers.AutoConfig.from_pretrained(
            folder.path, trust_remote_code=trust_remote_code, local_files_only=True
        )
    except _config_errors() as error:
        _raise_import_failure(folder, error)
        raise UsageError(
            f"transformers {transformers.__version__} cannot read the configuration in {folder.shown}.",
            why=f"{type(error).__name__}: {error_text(error)[:500]}",
            fix="check the fields it names, or use the version of transformers the folder was written for"
            + _written_for(folder),
        ) from error


def load_model_class(folder: ModelFolder, config: Any, trust_remote_code: bool) -> Any:
    """The class the folder was saved from: its own code, the named architecture, or the type's preferred class."""
    if trust_remote_code and folder.code_map:
        return _class_in_folder(folder)
    architectures = folder.fields.get("architectures")
    named = [name for name in architectures if isinstance(name, str)] if isinstance(architectures, list) else []
    known = class_names(config.model_type)
    for name in named:
        if name in known:
            return load_class(config.model_type, name)
    if known:
        return load_class(config.model_type, known[0])
    raise UsageError(
        f"transformers {import_transformers().__version__} has no model class for {config.model_type!r}.",
        why=f"its configuration names {', '.join(named) or 'no architecture'}",
        fix="install a version of transformers that has it" + _written_for(folder),
    )


def _class_in_folder(folder: ModelFolder) -> Any:
    entry = next((name for name in AUTO_CLASSES if name in folder.code_map), None)
    if entry is None:
        raise UsageError(
            f"The auto_map in {folder.shown} names no model.",
            why=f"its entries are {', '.join(folder.code_map)}",
            fix=f"add one of {', '.join(AUTO_CLASSES)} with the file and class of the model",
        )
    dynamic = importlib.import_module("transformers.dynamic_module_utils")
    try:
        return dynamic.get_class_from_dynamic_module(folder.code_map[entry], folder.path, local_files_only=True)
    except (ImportError, OSError, AttributeError, SyntaxError, ValueError, TypeError, RuntimeError) as error:
        _raise_import_failure(folder, error)
        raise PerfOptError(
            f"The code in {folder.shown} cannot be loaded.",
            why=f"{type(error).__name__}: {error_text(error)[:500]}",
            fix="install what it imports, and the version of transformers it was written for" + _written_for(folder),
        ) from error


def _raise_import_failure(folder: ModelFolder, error: Exception) -> None:
    """Name the package, where one is to blame."""
    failure = import_failure(error, folder.transformers_version)
    if failure is not None:
        raise PerfOptError(f"The code in {folder.shown} cannot be loaded.", why=failure.why, fix=failure.fix) from error


def _refuse_untrusted(folder: ModelFolder, trust_remote_code: bool) -> None:
    if trust_remote_code or not folder.code_map or class_names(folder.model_type):
        return
    raise UsageError(
        f"{folder.shown} brings its own Python code ({', '.join(sorted(set(folder.code_map.values())))}).",
        why=f"transformers itself has no model type {folder.model_type!r}, so that code would have to run here",
        fix="read the code, then add --trust-remote-code (profile: model.trust_remote_code=true)",
    )


def _refuse_unknown_type(folder: ModelFolder) -> None:
    """An architecture that is newer than the library, or that only the model's own code has."""
    known = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    if folder.code_map or not folder.model_type or folder.model_type in known:
        return
    version: str = import_transformers().__version__
    written = folder.transformers_version
    raise UsageError(
        f"transformers {version} does not know the architecture {folder.model_type!r} of {folder.shown}.",
        why=f"its configuration was written with transformers {written}"
        if written
        else "its configuration does not say which version it was written with",
        fix="pip install -U transformers; a model with code outside transformers runs from a folder with that code, "
        "with --trust-remote-code",
    )


def _config_errors() -> tuple[type[Exception], ...]:
    """What reading a configuration may raise; newer versions validate with an exception of their own."""
    errors = importlib.import_module("huggingface_hub.errors")
    strict = getattr(errors, "StrictDataclassError", ValueError)
    known = (ValueError, TypeError, KeyError, AttributeError, OSError, ImportError, ArithmeticError, RuntimeError)
    return (*known, strict)


def _written_for(folder: ModelFolder) -> str:
    return "" if folder.transformers_version is None else f" ({folder.transformers_version})"


def import_transformers() -> Any:
    """The library, or the command that installs it."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise cannot_run("transformers") from error


_LENGTH_NAMES = ("window", "chunk", "conv_kernel", "d_conv")
_OTHER_LENGTHS = frozenset(("vision_config", "audio_config"))  # of pixels and sound, not of a context


def windows(fields: Mapping[str, Any]) -> Iterator[int]:
    """Every window and chunk of text that a configuration names, nested configurations included."""
    names = _LENGTH_NAMES[1:] if fields.get("use_sliding_window") is False else _LENGTH_NAMES
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from windows({} if name in _OTHER_LENGTHS else value)
        elif type(value) is int and value > 1 and "layers" not in name and any(part in name for part in names):
            yield value


def layers(fields: Mapping[str, Any]) -> int:
    """Of all stacks that the configuration names, in it and in the configurations of its parts."""
    own = sum(value for name, value in fields.items() if name in DEPTHS and type(value) is int)
    return own + sum(layers(part) for part in fields.values() if isinstance(part, dict))


# `module.Class` of the folder, or `org/name--module.Class` of another one; never a path
_CODE = re.compile(r"(?:[\w.-]+/[\w.-]+--)?\w+(?:\.\w+)+", re.ASCII)
_LONGEST_NAME = 200
_DTYPES = ("torch_dtype", "dtype")
DEPTHS = frozenset(
    ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "depth", "encoder_layers", "decoder_layers")
)


def require_identity(file: Path, fields: Mapping[str, Any]) -> None:
    """Refuse a configuration that does not say plainly what it is: names, code, type of numbers, depth."""
    with naming_file(file):
        _require_sizes(fields)
        _require_model_type(fields.get("model_type"))
        _require_architectures(fields.get("architectures"))
        for entry, name in code_names(fields.get("auto_map")):
            if not _CODE.fullmatch(name):
                raise UsageError(
                    f"The auto_map names {name[:200]!r} as its {entry[:80]}.",
                    why="code is named as module.Class, where the module is in the folder of config.json",
                    fix="use the config.json that was published with the model",
                )


def code_names(auto_map: object) -> Iterator[tuple[str, str]]:
    """Entry and class of an `auto_map`: a name, or a list of names in which null stands for none."""
    if auto_map is None:
        return
    if not isinstance(auto_map, dict):
        raise MODEL_FILE.malformed("auto_map", "an object of class names", auto_map)
    for entry, value in auto_map.items():
        for name in value if isinstance(value, list) else [value]:
            if name is None and isinstance(value, list):
                continue
            if not isinstance(name, str):
                raise MODEL_FILE.malformed(f"auto_map[{entry[:80]!r}]", "the name of a class, or a list of names", name)
            yield entry, name


def _require_sizes(fields: Mapping[str, Any], where: str = "") -> None:
    """Types of numbers are named, and no stack has fewer layers than none: torch would build an empty one."""
    for name, value in fields.items():
        if name in _DTYPES and not _is_dtype(value):
            raise MODEL_FILE.malformed(f"{where}{name}", "the name of a type, such as bfloat16", value)
        if name in DEPTHS and type(value) is int and value < 0:
            raise MODEL_FILE.malformed(f"{where}{name}", "a number of layers, 0 or more", value)
        if isinstance(value, dict):
            _require_sizes(value, f"{where}{name[:80]}.")


def _is_dtype(value: object) -> bool:
    """A name, none, or a name for each part of the model."""
    names: Iterable[object] = value.values() if isinstance(value, dict) else (value,)
    return all(name is None or _is_name(name) for name in names)


def _require_model_type(model_type: object) -> None:
    if model_type is not None and not _is_name(model_type):
        raise MODEL_FILE.malformed("model_type", "a name, in printable characters", model_type)


def _require_architectures(architectures: object) -> None:
    if architectures is None:
        return
    if not isinstance(architectures, list):
        raise MODEL_FILE.malformed("architectures", "a list of class names", architectures)
    for row, name in enumerate(architectures):
        if not _is_name(name):
            raise MODEL_FILE.malformed(f"architectures[{row}]", "the name of a class", name)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_NAME and value.isprintable()
