"""Any local Hugging Face folder as a model: prefill, and decode where the model generates."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from llm_perf_opt.core.callgraph import CallGraph, StoredFormats
from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.missing_packages import import_failure
from llm_perf_opt.core.output_files import write_whole
from llm_perf_opt.core.parallel_plan import ParallelPlan
from llm_perf_opt.core.plain_text import error_text
from llm_perf_opt.core.plugins import FOLDER_FORMS, FOLDER_INPUTS, FOLDER_PARTS, FOLDER_RANKS, workload_type
from llm_perf_opt.core.reading import MODEL_FILE, read_bytes
from llm_perf_opt.core.recorded_step import RecordedTrainingStep
from llm_perf_opt.core.source_figures import SourceFigures
from llm_perf_opt.core.target import KEY as EXPECTED_CALLS
from llm_perf_opt.core.target import Json, Part, Target
from llm_perf_opt.core.training_setup import TrainingSetup
from llm_perf_opt.core.work_limits import out_of_memory, refuse_depth
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.harness.default_dtype import default_dtype
from llm_perf_opt.harness.fake_world import FakeWorld
from llm_perf_opt.harness.training_run import record_step
from llm_perf_opt.models.huggingface.folder import (
    import_transformers,
    layers,
    load_config,
    load_model_class,
    read_folder,
    windows,
)
from llm_perf_opt.models.huggingface.inputs import (
    Fed,
    Found,
    InputSizes,
    NoInputs,
    Plan,
    Subject,
    accepted_modalities,
    fed_by,
    make_inputs,
)
from llm_perf_opt.models.huggingface.inputs.media import image_advice
from llm_perf_opt.models.huggingface.inputs.plan import Integers
from llm_perf_opt.models.huggingface.inputs.recipes import RECIPES
from llm_perf_opt.models.huggingface.options import HuggingFaceWorkload, audio_samples
from llm_perf_opt.models.huggingface.parallel import spread_model, uneven_refusal, with_copied_key_heads
from llm_perf_opt.models.huggingface.parts import expected_decode, expected_prefill, guess_parts, guess_stages
from llm_perf_opt.models.huggingface.phases import (
    DecodeState,
    ModelProbe,
    decode,
    follow_prefill,
    prefill,
    prepare_decode,
)
from llm_perf_opt.models.huggingface.quantization import stored_formats
from llm_perf_opt.models.huggingface.resolved import (
    decoder_depth,
    find_at_full_length,
    modality_notes,
    refuse_what_did_not_run,
    require_room_for_steps,
    resolved_workload,
    trained_length_note,
)
from llm_perf_opt.models.huggingface.training import training_target
from llm_perf_opt.weightless import Engine

DECODER_PROMPT_TOKENS = 4  # of Whisper: start, language, task, no timestamps
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
ATTENTIONS = ("eager", "sdpa")
ENGINE_SUFFIXES = (".json", ".py")
ENCODER_STAGES = ("vision", "audio")  # the cache of a prefill holds their work
TRANSFORMERS_NAMES = {"flash": "flash_attention_2"}
# What a constructor raises when sizes do not fit, a field is missing, or an optional package is not there.
BUILD_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError),
    *(LookupError, RuntimeError, TypeError, ValueError),
)


class HuggingFaceAdapter:
    """Runs whatever the folder's `config.json` describes; weights are neither needed nor read."""

    title = "A local Hugging Face folder"

    def __init__(self, folder: Path, trust_remote_code: bool, *, name: str | None = None, source: str = "") -> None:
        self._world: FakeWorld | None = None
        self._copies_key_heads, self._copied = False, ""  # the latter: what is said of those that are
        self._folder, self._source = read_folder(folder, name), source
        refuse_depth(layers(self._folder.fields))
        self._config = load_config(self._folder, trust_remote_code)
        self._model_class = load_model_class(self._folder, self._config, trust_remote_code)
        self.title = f"{self._model_class.__name__} in {folder}" if name is None else name

    @property
    def workload_type(self) -> type[Workload]:
        """Of a model type with inputs of its own, what that model's folder declares."""
        return workload_type(str(self._folder.path))

    def targets(self, workload: Workload) -> tuple[Target, ...]:
        """Prefill, then decode on a cache of that length if the model keeps one and steps are asked for.

        A model type with a folder of its own here gets its inputs from there. For any other they are found by probing
        the model on an engine of our own; what is found is part of the workload.
        """
        targets = self._found_targets(self._folder.name or self._folder.path.resolve().name, workload)
        if not self._source:
            return targets
        note = f"Configuration of {self._folder.shown}: {self._source}."
        return tuple(replace(target, notes=(note, *target.notes)) for target in targets)  # of the run, not of a phase

    def _found_targets(self, name: str, workload: Workload) -> tuple[Target, ...]:
        if self._folder.model_type in FOLDER_INPUTS.names():
            build = partial(build_model, self._model_class, self._config, workload.attention or "eager", workload.dtype)
            return FOLDER_INPUTS.get(self._folder.model_type)(name, build, workload, self._world)
        own = HuggingFaceWorkload.of(workload)
        _refuse_nonsense(own)
        with nullcontext() if self._world is None else self._world:
            return self._probed_targets(name, own)

    def write_engine_folder(self, folder: Path) -> None:
        """What a serving engine reads of a model that was found by its name: its files of configuration and code."""
        for file in sorted(self._folder.path.iterdir()):
            if file.suffix in ENGINE_SUFFIXES and file.is_file():
                write_whole(folder / file.name, [read_bytes(file, MODEL_FILE)])

    def on_rank(self, plan: ParallelPlan) -> HuggingFaceAdapter:
        """The same model as one rank of a plan holds and runs it."""
        adapter = copy.copy(self)
        adapter._world = FakeWorld(plan) if plan.is_spread else None
        if self._copies_key_heads:
            adapter._config, adapter._copied = with_copied_key_heads(self._config, plan.tp)
        return adapter

    def copying_key_heads(self) -> HuggingFaceAdapter:
        """The same model, spread as engines do where ranks outnumber key heads."""
        adapter = copy.copy(self)
        adapter._copies_key_heads = True
        return adapter

    def kinds_of_rank(self, plan: ParallelPlan, workload: Workload) -> tuple[int, ...]:
        """Of a model type with ranks of its own, what that model's folder says; of any other one per kind of stage."""
        if self._folder.model_type in FOLDER_RANKS.names():
            return FOLDER_RANKS.get(self._folder.model_type)(plan, workload)
        return plan.kinds_of_rank()

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text, the first where the configuration names several."""
        eos = getattr(self._config.get_text_config(decoder=True), "eos_token_id", None)
        first = eos[0] if isinstance(eos, list) and eos else eos
        return first if isinstance(first, int) else None

    def text_of(self, token_ids: Sequence[int]) -> str | None:
        """None: the folder's tokenizer is not read."""
        return None

    def stored_formats(self, graph: CallGraph) -> StoredFormats:
        """What the folder's `quantization_config` says of the weights in the trace."""
        has_all_layers = self._world is None or self._world.plan.pp == 1
        return stored_formats(self._folder.path, self._folder.fields, graph, has_all_layers=has_all_layers)

    def closed_forms(self, workload: Workload) -> tuple[SourceFigures, ...]:
        """The closed forms of the model type's own folder here, for the configuration of this one; otherwise none.

        They are for the whole model: there are none for one rank of a plan.
        """
        if self._world is not None or self._folder.model_type not in FOLDER_FORMS.names():
            return ()
        return FOLDER_FORMS.get(self._folder.model_type)(self._folder.path).closed_forms(workload)

    def describe(self, workload: Workload) -> dict[str, Json]:
        """What is given; of a model type with closed forms also the lengths that follow from it."""
        if self._folder.model_type not in FOLDER_FORMS.names():
            return {name: value for name, value in asdict(workload).items() if value is not None}
        return FOLDER_FORMS.get(self._folder.model_type)(self._folder.path).describe(workload)

    def lengths_of_interest(self) -> tuple[int, ...]:
        """Every window and chunk that the configuration names, nested configurations included."""
        return tuple(sorted(set(windows(self._folder.fields))))

    def parts(self) -> tuple[Part, ...]:
        """The parts that the model type's own folder here names, or one of each kind of block."""
        if self._folder.model_type in FOLDER_PARTS.names():
            return FOLDER_PARTS.get(self._folder.model_type)()
        with torch.device("meta"):
            return guess_parts(build_model(self._model_class, self._config, None, "float32"))

    def training_step(self, setup: TrainingSetup, routing: str | None = None) -> RecordedTrainingStep:
        """One step of the model's own training code, without weights."""
        name = self._folder.name or self._folder.path.resolve().name
        build = partial(build_model, self._model_class, self._config, setup.attention, setup.dtype)
        target = training_target(name, build, setup)
        return record_step(target, Engine(device=setup.device, routing=routing or "uniform", autograd=True))

    def _probed_targets(self, name: str, workload: HuggingFaceWorkload) -> tuple[Target, ...]:
        build = partial(self._build, workload.attention, workload.dtype)
        probe = ModelProbe(build, DTYPES[workload.dtype], self._world)
        subject = Subject.of(self._model_class, probe.model.config, _sizes(workload, self._model_class))
        inputs = self._found_inputs(subject, probe, workload)
        fed = fed_by(subject, inputs.plan, inputs.modalities)
        refuse_what_did_not_run(workload, subject, inputs, fed)
        encoder_tokens, chain = (
            probe.encoder_tokens,
            probe.chain(inputs.plan, inputs.entry, generates=subject.generates),
        )
        new = workload.new_tokens
        state = probe.decode_state(inputs.plan, inputs.entry, new) if workload.decode_steps else None
        steps = _steps_that_run(subject, probe, inputs, state, workload)
        notes = (
            *filter(None, [self._copied]),
            *modality_notes(workload, subject, inputs, fed),
            *trained_length_note(subject, _positions(fed, steps * new)),
            *_decode_notes(subject, probe, workload.decode_steps, steps),
        )
        ran = resolved_workload(workload, subject, inputs, fed, encoder_tokens=encoder_tokens, decode_steps=steps)
        stages, images = guess_stages(probe.model), workload.batch if "image" in inputs.modalities else 0
        first = Target(
            model=name,
            phase="prefill",
            workload=ran,
            build=cache(build),
            prepare=lambda _: make_inputs(inputs.plan, DTYPES[workload.dtype]),
            invoke=partial(prefill, entry=inputs.entry),
            stages=stages,
            runtime={
                "images": images,
                **decoder_depth(probe.model.config),
                "decode_steps": 0,
                **expected_prefill(probe.model, stages, images),
            },
            notes=notes,
            chain=chain,
            world=self._world,
        )
        return (first,) if state is None else (first, _decode_target(first, probe, state, inputs.plan, steps))

    def _found_inputs(self, subject: Subject, probe: ModelProbe, workload: HuggingFaceWorkload) -> Found:
        try:
            return _accepted_inputs(subject, probe, workload)
        except NoInputs as error:
            refusal = uneven_refusal(subject.class_name, self._config, self._world)
            if refusal is None:
                raise
            raise refusal from error

    def _build(self, attention: str | None, dtype: str) -> Any:
        build = partial(build_model, self._model_class, self._config, attention, dtype)
        return build() if self._world is None else spread_model(build, self._world)


def _accepted_inputs(subject: Subject, probe: ModelProbe, workload: HuggingFaceWorkload) -> Found:
    """What the model runs with: text, image and sound if asked for, and nothing else that it can do without."""
    sizes = {"image": workload.image, "audio": workload.audio_seconds}
    wanted = frozenset(kind for kind, size in sizes.items() if size is not None)
    special = RECIPES.get(subject.model_type)
    takes = accepted_modalities(subject) if special is None else special.modalities
    for kind in sorted(wanted.difference(takes)):
        raise _not_fed(subject, workload, kind, f"its forward takes no {'pixels' if kind == 'image' else 'sound'}")
    try:
        return find_at_full_length(subject, probe.prefill, wanted)
    except NoInputs as error:
        if not wanted:
            raise
        raise _not_fed(subject, workload, min(wanted, key=list(sizes).index), error.why) from error


def _not_fed(subject: Subject, workload: HuggingFaceWorkload, kind: str, why: str | None) -> UsageError:
    refused, fix = (
        (f"an image of {workload.image}", image_advice(subject))
        if kind == "image"
        else (f"sound of {workload.audio_seconds} s", "leave audio_seconds out")
    )
    return UsageError(f"{subject.class_name} does not run with {refused}.", why=why or "it refuses it", fix=fix)


def _steps_that_run(
    subject: Subject, probe: ModelProbe, inputs: Found, state: DecodeState | None, workload: HuggingFaceWorkload
) -> int:
    """All that were asked for, or none where the model keeps no cache; steps beyond its positions are refused."""
    refusal, steps, new = probe.decode_refusal if state is None else None, workload.decode_steps, workload.new_tokens
    if state is None and new > 1:
        raise UsageError(
            f"{subject.class_name} does not run {new:,} new tokens after a prefill.",
            why="it leaves no cache to continue from"
            if refusal is None
            else f"{type(refusal).__name__}: {error_text(refusal)[:200]}",
            fix="leave --new-tokens out",
        )
    if state is None and refusal is None:
        return 0
    ids = inputs.plan.get("decoder_input_ids", inputs.plan.get("input_ids"))
    assert isinstance(ids, Integers), "a model that was asked for a step was fed token ids"
    require_room_for_steps(
        subject, inputs, probe.prefill, context_tokens=ids.shape[1], steps=steps, new_tokens=new, refusal=refusal
    )
    return steps if state is not None else 0


def _positions(fed: Fed, steps: int) -> int:
    """The most positions that one side of the model sees: its text, or its decoder's tokens with the steps."""
    own = fed.context_tokens if fed.decoder_tokens is None else fed.decoder_tokens
    return max(fed.context_tokens or 0, (own or 0) + steps)


def _decode_notes(subject: Subject, probe: ModelProbe, wanted_steps: int, steps: int) -> tuple[str, ...]:
    if steps or not wanted_steps:
        return ()
    if probe.decode_refusal is not None:
        refusal = f"{type(probe.decode_refusal).__name__}: {error_text(probe.decode_refusal)[:200]}"
        return (f"No decode: {subject.class_name} refuses one more token after the prefill ({refusal}).",)
    is_told = subject.generates or wanted_steps > 1
    return (f"No decode: {subject.class_name} leaves no cache to continue from.",) if is_told else ()


def build_model(model_class: Any, config: Any, attention: str | None, dtype: str) -> Any:
    """The model as `from_pretrained` would make it in `dtype`, without its weights, in evaluation mode."""
    version: str = import_transformers().__version__
    options: dict[str, Any] = {"dtype" if int(version.split(".")[0]) >= 5 else "torch_dtype": DTYPES[dtype]}
    if attention is not None:
        options["attn_implementation"] = TRANSFORMERS_NAMES.get(attention, attention)
    try:
        with default_dtype():  # transformers sets its own, and not all versions take it back
            return model_class._from_config(copy.deepcopy(config), **options).eval()
    except BUILD_ERRORS as error:
        if (no_memory := out_of_memory(error, f"{model_class.__name__} was being built")) is not None:
            raise no_memory from error
        failure = import_failure(error)
        raise PerfOptError(
            f"{model_class.__name__} cannot be built from its configuration.",
            why=f"{type(error).__name__}: {error_text(error)[:500]}" if failure is None else failure.why,
            fix=f"check the configuration, install what it asks for, or use another transformers (this is {version})"
            if failure is None
            else failure.fix,
        ) from error


def _decode_target(first: Target, probe: ModelProbe, state: DecodeState, plan: Plan, steps: int) -> Target:
    return replace(
        first,
        phase="decode" if state.new_tokens == 1 else "chunk",
        workload={**first.workload, "inputs": probe.step_shapes(state, plan)},
        prepare=lambda _: prepare_decode(state, plan, steps),
        invoke=decode,
        runtime=_decode_runtime(first, probe, steps, state.new_tokens),
        chain=replace(
            first.chain,
            follow=partial(follow_prefill, state=state, plan=plan, steps=steps),
            logits=None,
            cached_stages=tuple(stage.name for stage in first.stages if stage.name in ENCODER_STAGES),
        ),
    )


def _decode_runtime(first: Target, probe: ModelProbe, steps: int, new_tokens: int) -> dict[str, Json]:
    facts = {name: fact for name, fact in first.runtime.items() if name != EXPECTED_CALLS}
    counts: dict[str, Json] = {"decode_steps": steps} if new_tokens == 1 else {"new_tokens": new_tokens}
    return {**facts, "images": 0, **counts, **expected_decode(probe.model, first.stages, steps)}


def _sizes(workload: HuggingFaceWorkload, model_class: Any) -> InputSizes:
    """A decoder with an encoder of text begins with its start token, any other with a short prompt of its own."""
    encodes_text = "input_ids" in inspect.signature(model_class.forward).parameters
    return InputSizes(
        batch=workload.batch,
        prompt_tokens=workload.prompt_tokens,
        image=_image_sides(workload.image),
        decoder_tokens=workload.decoder_tokens or (1 if encodes_text else DECODER_PROMPT_TOKENS),
        audio_samples=audio_samples(1.0 if workload.audio_seconds is None else workload.audio_seconds),
    )


def _image_sides(image: str | None) -> tuple[int, int] | None:
    """(height, width) of `WIDTHxHEIGHT`."""
    if image is None:
        return None
    if (match := re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", image)) is None:
        raise UsageError(
            f"A Hugging Face folder cannot be traced with the image {image!r}.",
            why="without the model's processor only the size of an image is used",
            fix="give its size after the processor's resizing, as WIDTHxHEIGHT",
        )
    return int(match[2]), int(match[1])


def _refuse_nonsense(workload: Workload) -> None:
    if workload.prompt_tokens == 0:
        raise UsageError("A text has at least one token.", why="prompt_tokens is 0", fix="leave it out, or give more")
    if workload.new_tokens > 1 and workload.decode_steps != 1:
        raise UsageError(
            f"{workload.decode_steps} steps of {workload.new_tokens:,} new tokens are not traced.",
            why="a chunk is one step after the prefill",
            fix="leave --decode-steps out, and trace a later chunk with a longer --prompt-tokens",
        )
    if workload.attention not in (None, *ATTENTIONS):
        raise UsageError(
            f"Attention {workload.attention!r} cannot be run for a Hugging Face folder.",
            why="transformers calls the compiled flash_attn package for it, which needs a GPU",
            fix="use sdpa: torch's fused attention has the same shapes, FLOPs and memory",
        )
