"""A session runs what plain generation runs, phase by phase, and says what it decided."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from llm_perf_opt.core.errors import PerfOptError, UsageError
from llm_perf_opt.core.workload import Workload
from llm_perf_opt.harness.real_models import RealModels
from llm_perf_opt.models.deepseek_ocr.adapter import DeepSeekOcrAdapter
from llm_perf_opt.models.deepseek_ocr.checkpoint import DeepSeekOcrCheckpoint
from llm_perf_opt.models.deepseek_ocr.configuration import DeepSeekOcrConfig
from llm_perf_opt.models.deepseek_ocr.inputs import PromptIds, prompt_ids
from llm_perf_opt.models.deepseek_ocr.options import DeepSeekOcrWorkload
from llm_perf_opt.models.deepseek_ocr.released_folder import load_tokenizer, read_released_folder
from llm_perf_opt.models.deepseek_ocr.session import DeepSeekOCRSession
from tests.models.deepseek_ocr.tiny_twin import TINY, tiny_model, write_tiny_folder

FACTS = Path(__file__).parents[2] / "facts" / "deepseek_ocr"
PAGE = "90x130"  # larger than a tile of the twin, so that gundam cuts it
PROMPT = (7, 8, 9, 10, 11, 12)


class Log:
    """Every beginning and end of a stage, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.lines.append(f"+{name}")
        yield
        self.lines.append(f"-{name}")

    def entered(self, name: str) -> int:
        return self.lines.count(f"+{name}")


def tiny_session(attention: str = "eager", *, sharp: bool = True) -> DeepSeekOCRSession:
    session = DeepSeekOCRSession.from_blueprint(TINY, weights="random", dtype="float32", attention=attention)
    if sharp:  # weights under which different pages and prompts end in different tokens
        session.model.load_state_dict(tiny_model(attention).state_dict())
    return session


def plain_generation(session: DeepSeekOCRSession, page: str, mode: str, tokens: int) -> list[int]:
    """The most likely token, over and over, each time from the whole sequence and without any cache."""
    inputs, _ = session.prepare(page, PROMPT, mode, None)
    ids: Tensor = inputs.input_ids
    made: list[int] = []
    with torch.no_grad():
        for _ in range(tokens):
            mask = torch.nn.functional.pad(inputs.images_seq_mask, (0, len(made)), value=False)
            logits = session.model(
                input_ids=ids,
                images=inputs.images,
                images_seq_mask=mask,
                images_spatial_crop=inputs.images_spatial_crop,
            ).logits
            made.append(int(logits[0, -1].argmax()))
            ids = torch.cat([ids, torch.tensor([[made[-1]]])], dim=1)
    return made


@pytest.mark.parametrize("attention", ["eager", "sdpa", "flash"])
@pytest.mark.parametrize("mode", ["base", "gundam"])
def test_tokens_are_those_of_plain_generation(mode: str, attention: str) -> None:
    session = tiny_session(attention)
    run = session.run_inference(PAGE, PROMPT, 12, mode=mode)
    assert list(run.token_ids) == plain_generation(session, PAGE, mode, 12)
    assert len(set(run.token_ids)) > 1  # a model that always says the same proves nothing


def test_the_page_decides_the_tokens() -> None:
    session = tiny_session()
    pages = ["64x64", "90x130", "130x60", "40x41"]
    assert len({session.run_inference(page, PROMPT, 6).token_ids for page in pages}) > 1


def test_one_prefill_then_one_forward_per_token_that_does_not_look_at_the_page() -> None:
    """The images travel along, as in the released generation loop and in the trace of a decode."""
    log, forwards = Log(), []
    session = tiny_session()
    handle = session.model.register_forward_pre_hook(
        lambda module, args, kwargs: forwards.append((kwargs["input_ids"].shape[1], "images" in kwargs)),
        with_kwargs=True,
    )
    run = session.run_inference(PAGE, PROMPT, 5, mode="gundam", watch=log)
    handle.remove()
    assert forwards == [(run.context_tokens, True)] + [(1, True)] * 4
    assert run.decode_steps == 4
    assert run.cache_tokens == run.context_tokens + 4
    assert [log.entered(name) for name in ("preprocess", "prefill", "decode", "sampling")] == [1, 1, 4, 5]
    assert [log.entered(name) for name in ("sam", "clip", "projector")] == [2, 2, 2]  # the tiles, the whole page
    inside_prefill = log.lines[log.lines.index("+prefill") : log.lines.index("-prefill")]
    assert sum(line == "+sam" for line in inside_prefill) == 2
    assert log.lines[0] == "+preprocess"


def test_vision_in_decode_is_refused() -> None:
    session = tiny_session()
    inner = session.model.model
    forward = inner.forward

    def encodes_again(*args: object, **kwargs: object) -> object:
        if kwargs["past_key_values"] is not None:
            inner.encode(torch.zeros(1, 3, 64, 64))
        return forward(*args, **kwargs)

    inner.__dict__["forward"] = encodes_again
    with pytest.raises(PerfOptError, match="stage 'sam' ran during decode"):
        session.run_inference(PAGE, PROMPT, 2, mode="base")


def test_a_cache_that_does_not_grow_is_refused() -> None:
    session = tiny_session()
    forward = session.model.forward

    def forgets(*args: object, **kwargs: object) -> object:
        output = forward(*args, **kwargs)
        return output._replace(past_key_values=tuple((k[..., 1:, :], v[..., 1:, :]) for k, v in output.past_key_values))

    session.model.__dict__["forward"] = forgets
    with pytest.raises(PerfOptError, match="The cache holds"):
        session.run_inference(PAGE, PROMPT, 3, mode="base")


def test_an_end_token_ends_the_run() -> None:
    session = tiny_session()
    free = session.run_inference(PAGE, PROMPT, 12)
    session.eos_token_id = free.token_ids[3]
    first = free.token_ids.index(session.eos_token_id)
    assert session.run_inference(PAGE, PROMPT, 12).token_ids == free.token_ids[: first + 1]
    assert session.run_inference(PAGE, PROMPT, 12, stop_at_eos=False).token_ids == free.token_ids


def test_the_workload_told_is_the_run_for_the_adapter() -> None:
    session = tiny_session()
    run = session.run_inference(PAGE, 9, 3, mode="gundam")
    target = session.adapter.targets(run.workload)[0]
    assert target.workload["context_tokens"] == run.context_tokens
    assert target.workload["decode_steps"] == run.decode_steps == 2
    assert run.workload == DeepSeekOcrWorkload(
        image=PAGE, mode="gundam", crops=(2, 3), prompt_tokens=9, decode_steps=2, dtype="float32", attention="eager"
    )


@pytest.mark.parametrize("crops", [None, (1, 1), (2, 1)])
def test_the_adapter_cuts_the_page_as_the_run_did(crops: tuple[int, int] | None) -> None:
    session = tiny_session()
    run = session.run_inference(PAGE, 9, 1, mode="gundam", crops=crops)
    assert session.adapter.targets(run.workload)[0].workload["context_tokens"] == run.context_tokens


def test_without_weights_there_is_an_adapter_and_no_model() -> None:
    session = DeepSeekOCRSession.from_blueprint()
    assert session.adapter.targets(Workload())[0].phase == "prefill"
    with pytest.raises(PerfOptError, match="no weights"):
        session.run_inference(PAGE, 3, 1)


def test_words_without_a_tokenizer_are_refused() -> None:
    with pytest.raises(UsageError, match="needs a tokenizer"):
        tiny_session().run_inference(PAGE, "Free OCR.", 1)


class WordTokenizer:
    """Each word is a token: its length."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [len(word) for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


def test_the_mark_says_where_the_page_goes() -> None:
    session = tiny_session()
    session.tokenizer = WordTokenizer()
    inputs, _ = session.prepare(PAGE, "a bb <image>\nccc dddd eeeee", "base", None)
    ids = inputs.input_ids[0].tolist()
    page = TINY.decoder.image_token_id
    assert ids[:4] == [TINY.decoder.bos_token_id, 1, 2, page]
    assert ids[-4:] == [page, 3, 4, 5]
    assert inputs.images_seq_mask[0].tolist() == [token == page for token in ids]
    assert session.run_inference(PAGE, "a <image> b", 2).text is not None


def test_stage_and_module_ranges_reach_the_profiler() -> None:
    session = tiny_session()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        session.run_inference(PAGE, 3, 2, mode="base", ranges="modules")
    counts = {event.key: event.count for event in profiler.key_averages()}
    stages = {name: counts[f"stage: {name}"] for name in ("preprocess", "sam", "prefill", "decode", "sampling")}
    assert stages == {"preprocess": 1, "sam": 1, "prefill": 1, "decode": 1, "sampling": 2}
    assert counts["module: model.layers.0.self_attn"] == 2


def test_nothing_stays_on_the_model() -> None:
    session = tiny_session()
    session.run_inference(PAGE, 3, 2, ranges="modules")
    assert [path for path, module in session.model.named_modules() if "forward" in vars(module)] == []


def test_the_released_configuration_file_is_the_default_blueprint() -> None:
    released = json.loads((FACTS / "config.json").read_text("utf-8"))
    folder = FACTS
    assert released["model_type"] == "DeepseekOCR"
    found = read_released_folder(folder)
    assert (found.config.sam, found.config.clip, found.config.decoder) == (
        DeepSeekOcrConfig().sam,
        DeepSeekOcrConfig().clip,
        DeepSeekOcrConfig().decoder,
    )
    assert found.eos_token_id == 1


def test_a_folder_without_trust_puts_its_weights_into_the_blueprint(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="reading stored weights needs safetensors")
    write_tiny_folder(tmp_path)
    config = read_released_folder(tmp_path).config
    assert (config.decoder.hidden_size, config.clip.ffn_hidden_size, config.sam.hidden_size) == (16, 32, 8)
    session = DeepSeekOCRSession.from_local(tmp_path, dtype="float32", weights="random")
    weights = {name: tensor + 1 for name, tensor in session.model.state_dict().items()}
    safetensors.save_file(weights, tmp_path / "model.safetensors")
    stored = DeepSeekOCRSession.from_local(tmp_path, dtype="float32", use_flash_attn=True)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in stored.model.state_dict().items())
    assert any("does not call the flash-attn package" in note for note in stored.notes)
    assert any("no tokenizer" in note for note in stored.notes)


def test_a_folder_of_another_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    with pytest.raises(UsageError, match="does not hold DeepSeek-OCR"):
        DeepSeekOCRSession.from_local(tmp_path)


def test_an_option_that_a_folder_cannot_have_is_refused() -> None:
    with pytest.raises(UsageError, match="not run with attention 'sdpa'"):
        DeepSeekOcrCheckpoint(FACTS, DeepSeekOcrAdapter, attention="sdpa")


def test_another_kind_of_decoder_needs_the_folders_own_code(tmp_path: Path) -> None:
    document = json.loads((FACTS / "config.json").read_text("utf-8")) | {"use_mla": True}
    (tmp_path / "config.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(UsageError, match="decoder that the blueprint does not have"):
        DeepSeekOCRSession.from_local(tmp_path)


def test_random_weights_are_those_of_the_tracers() -> None:
    session = tiny_session(sharp=False)
    target = session.adapter.targets(Workload(dtype="float32", attention="eager"))[0]
    traced = RealModels(weights="random", device="cpu").model_of(target).state_dict()
    assert all(torch.equal(tensor, traced[name]) for name, tensor in session.model.state_dict().items())


def test_the_tokenizer_of_a_folder_is_read_and_a_broken_one_is_told(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="a tokenizer is made with it")
    transformers = pytest.importorskip("transformers", reason="tokenizers are read with it")
    words = {"[UNK]": 0, "free": 1, "ocr": 2, "page": 3}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]").save_pretrained(tmp_path)
    tokenizer, note = load_tokenizer(tmp_path, trust_remote_code=False)
    assert tokenizer is not None
    assert prompt_ids("page <image> free ocr", tokenizer) == PromptIds(before=(3,), after=(1, 2))
    assert "tokenizer" in note
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    assert load_tokenizer(tmp_path, trust_remote_code=False)[0] is None


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "additional_chat_templates/rag.jinja"])
@pytest.mark.parametrize("leads_to", ["the file of another folder", "nothing"])
def test_a_tokenizer_that_leads_out_of_its_folder_is_refused(tmp_path: Path, name: str, leads_to: str) -> None:
    """Two folders with tokenizers: one has a link to a file of the other, of which nothing may be read."""
    pytest.importorskip("transformers", reason="tokenizers are read with it")
    folder, other = tmp_path / "mine", tmp_path / "other"
    for place in (folder, other):
        (place / name).parent.mkdir(parents=True)
        (place / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    if leads_to != "nothing":
        (other / name).write_text("{}")
    (folder / name).symlink_to(other / name)
    with pytest.raises(UsageError, match="leads out of its folder"):
        load_tokenizer(folder, trust_remote_code=False)
    (folder / name).unlink()
    (folder / name).symlink_to("tokenizer_config.json" if "/" not in name else "../tokenizer_config.json")
    load_tokenizer(folder, trust_remote_code=False)  # a link inside stays one


def test_two_pages_in_one_prompt_are_refused() -> None:
    with pytest.raises(UsageError, match="more than once"):
        prompt_ids("<image> and <image>", WordTokenizer())
