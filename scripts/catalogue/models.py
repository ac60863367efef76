"""The names of the catalogue: what each is, where its hyper-parameters come from, and names that share them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scripts.catalogue import written as by

WHEEL, FACTS, DEFAULT, WRITTEN = "wheel", "facts", "default", "written"
DENSE, MOE, VLM, OCR = "dense LLM", "MoE LLM", "vision-language", "OCR"
AUDIO, EMBEDDING, VISION, PAIR = "audio", "embedding", "vision", "text-to-text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One model. `place` is its name in the wheel, the folder of the facts, or the class whose default it is."""

    name: str
    kind: str
    origin: str
    place: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)  # all of a written one; of others what is put on top
    without: tuple[str, ...] = ()  # fields that are left out
    shared_by: tuple[str, ...] = ()  # names with the same hyper-parameters


def wheel(kind: str, name: str, *shared_by: str, place: str = "", **other: Any) -> Entry:
    return Entry(name=name, kind=kind, origin=WHEEL, place=place or name, shared_by=shared_by, **other)


def facts(kind: str, name: str, folder: str, *shared_by: str, **other: Any) -> Entry:
    return Entry(name=name, kind=kind, origin=FACTS, place=folder, shared_by=shared_by, **other)


def default(kind: str, name: str, config: str, *shared_by: str, head: str = "", **fields: Any) -> Entry:
    own = {**({"architectures": [head]} if head else {}), **fields}
    return Entry(name=name, kind=kind, origin=DEFAULT, place=config, fields=own, shared_by=shared_by)


def written(kind: str, name: str, fields: Mapping[str, Any], *shared_by: str) -> Entry:
    return Entry(name=name, kind=kind, origin=WRITTEN, fields=fields, shared_by=shared_by)


_LLAMA = (
    facts(
        DENSE, "meta-llama/Llama-3.1-8B", "llama31-8b", "meta-llama/Llama-3.1-8B-Instruct",
        "meta-llama/Meta-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B-Instruct",
        "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
    ),
    facts(
        DENSE, "meta-llama/Llama-3.1-70B", "llama31-70b", "meta-llama/Llama-3.1-70B-Instruct",
        "meta-llama/Meta-Llama-3.1-70B", "meta-llama/Meta-Llama-3.1-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct",
        "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
    ),
    facts(
        DENSE, "meta-llama/Llama-3.1-405B", "llama31-405b", "meta-llama/Llama-3.1-405B-Instruct",
        "meta-llama/Meta-Llama-3.1-405B", "meta-llama/Meta-Llama-3.1-405B-Instruct",
    ),
    facts(DENSE, "meta-llama/Llama-3.2-1B", "llama32-1b", "meta-llama/Llama-3.2-1B-Instruct"),
    written(DENSE, "meta-llama/Llama-3.2-3B", by.llama32_3b(), "meta-llama/Llama-3.2-3B-Instruct"),
    default(DENSE, "meta-llama/Llama-2-7b-hf", "LlamaConfig", "meta-llama/Llama-2-7b-chat-hf"),
    facts(VLM, "meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama4-scout", "meta-llama/Llama-4-Scout-17B-16E"),
    default(VLM, "meta-llama/Llama-3.2-11B-Vision", "MllamaConfig"),
    written(VLM, "meta-llama/Llama-3.2-11B-Vision-Instruct", by.llama32_vision_instruct()),
    written(
        DENSE, "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        by.llama(2048, 22, 32, 4, 5632, 32000, max_position_embeddings=2048, rope_theta=10000.0),
    ),
    written(
        DENSE, "HuggingFaceTB/SmolLM2-1.7B",
        by.llama(2048, 24, 32, 32, 8192, 49152, tie_word_embeddings=True, max_position_embeddings=8192,
                 rope_theta=130000),
        "HuggingFaceTB/SmolLM2-1.7B-Instruct",
    ),
    written(
        DENSE, "HuggingFaceTB/SmolLM2-135M",
        by.llama(576, 30, 9, 3, 1536, 49152, tie_word_embeddings=True, max_position_embeddings=8192, rope_theta=100000),
        "HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
    default(DENSE, "HuggingFaceTB/SmolLM3-3B", "SmolLM3Config"),
)  # fmt: skip

_QWEN = (
    *(wheel(DENSE, f"Qwen/Qwen3-{size}") for size in ("0.6B", "1.7B", "8B", "32B")),
    written(DENSE, "Qwen/Qwen3-4B", by.qwen3(2560, 36, 32, 8, 9728, 151936, tied=True)),
    written(DENSE, "Qwen/Qwen3-14B", by.qwen3(5120, 40, 40, 8, 17408, 151936)),
    *(wheel(MOE, f"Qwen/Qwen3-{size}") for size in ("30B-A3B", "235B-A22B", "Coder-480B-A35B-Instruct")),
    facts(MOE, "Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3-next", "Qwen/Qwen3-Next-80B-A3B-Thinking"),
    *(wheel(VLM, f"Qwen/Qwen3.5-{size}") for size in ("27B", "35B-A3B", "122B-A10B", "397B-A17B")),
    *(
        wheel(VLM, f"Qwen/Qwen3-VL-{size}-Instruct")
        for size in ("2B", "4B", "8B", "32B", "30B-A3B", "235B-A22B")
    ),
    written(
        DENSE, "Qwen/Qwen2.5-0.5B", by.qwen2(896, 24, 14, 2, 4864, 151936, tied=True), "Qwen/Qwen2.5-0.5B-Instruct"
    ),
    written(
        DENSE, "Qwen/Qwen2.5-1.5B", by.qwen2(1536, 28, 12, 2, 8960, 151936, tied=True), "Qwen/Qwen2.5-1.5B-Instruct"
    ),
    written(DENSE, "Qwen/Qwen2.5-3B", by.qwen2(2048, 36, 16, 2, 11008, 151936, tied=True), "Qwen/Qwen2.5-3B-Instruct"),
    written(
        DENSE, "Qwen/Qwen2.5-7B", by.qwen2(3584, 28, 28, 4, 18944, 152064), "Qwen/Qwen2.5-7B-Instruct",
        "Qwen/Qwen2.5-Coder-7B-Instruct",
    ),
    written(DENSE, "Qwen/Qwen2.5-14B", by.qwen2(5120, 48, 40, 8, 13824, 152064), "Qwen/Qwen2.5-14B-Instruct"),
    written(
        DENSE, "Qwen/Qwen2.5-32B", by.qwen2(5120, 64, 40, 8, 27648, 152064), "Qwen/Qwen2.5-32B-Instruct",
        "Qwen/Qwen2.5-Coder-32B-Instruct",
    ),
    written(DENSE, "Qwen/Qwen2.5-72B", by.qwen2(8192, 80, 64, 8, 29568, 152064), "Qwen/Qwen2.5-72B-Instruct"),
    written(VLM, "Qwen/Qwen2.5-VL-3B-Instruct", by.qwen25_vl(2048, 36, 16, 2, 11008, 151936, tied=True)),
    facts(VLM, "Qwen/Qwen2.5-VL-7B-Instruct", "qwen25-vl-7b"),
    written(VLM, "Qwen/Qwen2.5-VL-32B-Instruct", by.qwen25_vl(5120, 64, 40, 8, 27648, 152064, tower_mlp=3456)),
    written(VLM, "Qwen/Qwen2.5-VL-72B-Instruct", by.qwen25_vl(8192, 80, 64, 8, 29568, 152064, tower_mlp=3456)),
    written(VLM, "Qwen/Qwen2-VL-2B-Instruct", by.qwen2_vl(1536, 28, 12, 2, 8960, 151936, tied=True)),
    written(VLM, "Qwen/Qwen2-VL-7B-Instruct", by.qwen2_vl(3584, 28, 28, 4, 18944, 152064)),
    default(MOE, "Qwen/Qwen1.5-MoE-A2.7B", "Qwen2MoeConfig"),
)  # fmt: skip

_DEEPSEEK = (
    wheel(MOE, "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3-0324"),
    wheel(MOE, "deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-R1-0528"),
    wheel(MOE, "deepseek-ai/DeepSeek-V3.2"),
    wheel(MOE, "deepseek-ai/DeepSeek-V4-Flash"),
    wheel(MOE, "deepseek-ai/DeepSeek-V4-Pro"),
    written(MOE, "deepseek-ai/DeepSeek-V2-Lite", by.deepseek_v2_lite(), "deepseek-ai/DeepSeek-V2-Lite-Chat"),
)

_MISTRAL = (
    facts(DENSE, "mistralai/Mistral-7B-v0.1", "mistral-7b-v0.1"),
    written(
        DENSE, "mistralai/Mistral-7B-v0.3", by.mistral(4096, 32, 32, 8, 14336, 32768),
        "mistralai/Mistral-7B-Instruct-v0.3",
    ),
    written(
        DENSE, "mistralai/Mistral-Nemo-Base-2407", by.mistral(5120, 40, 32, 8, 14336, 131072, positions=131072),
        "mistralai/Mistral-Nemo-Instruct-2407",
    ),
    facts(
        VLM, "mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistral-small-3.2-24b",
        "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
    ),
    wheel(MOE, "mistralai/Mixtral-8x7B-v0.1"),
    wheel(MOE, "mistralai/Mixtral-8x22B-v0.1"),
    default(MOE, "mistralai/Mistral-Small-4-119B-2603", "Mistral4Config"),
)  # fmt: skip

_GOOGLE = (
    written(DENSE, "google/gemma-2-2b", by.gemma2(2304, 26, 8, 4, 9216, 256000, head_dim=256, scalar=256),
            "google/gemma-2-2b-it"),
    written(DENSE, "google/gemma-2-9b", by.gemma2(3584, 42, 16, 8, 14336, 256000, head_dim=256, scalar=256),
            "google/gemma-2-9b-it"),
    written(DENSE, "google/gemma-2-27b", by.gemma2(4608, 46, 32, 16, 36864, 256000, head_dim=128, scalar=144),
            "google/gemma-2-27b-it"),
    written(DENSE, "google/gemma-3-1b-it",
            by.gemma3_text(1152, 26, 4, 1, 6912, 262144, window=512, positions=32768), "google/gemma-3-1b-pt"),
    written(VLM, "google/gemma-3-4b-it", by.gemma3(2560, 34, 8, 4, 10240, 262208), "google/gemma-3-4b-pt"),
    written(VLM, "google/gemma-3-12b-it", by.gemma3(3840, 48, 16, 8, 15360, 262208), "google/gemma-3-12b-pt"),
    facts(VLM, "google/gemma-3-27b-it", "gemma3-27b", "google/gemma-3-27b-pt"),
    wheel(VLM, "google/gemma-4-26B-A4B"),
    wheel(VLM, "google/gemma-4-31B-it", place="nvidia/Gemma-4-31B-IT-NVFP4", without=("quantization_config",)),
    default(VLM, "google/gemma-4-e2b-it", "Gemma4Config"),
)  # fmt: skip

_OTHER_LLMS = (
    facts(MOE, "moonshotai/Kimi-K2-Instruct", "kimi-k2", fields={"quantization_config": by.FP8_IN_BLOCKS}),
    wheel(VLM, "moonshotai/Kimi-K2.5"),
    default(MOE, "moonshotai/Kimi-Linear-48B-A3B-Instruct", "KimiLinearConfig"),
    facts(MOE, "zai-org/GLM-4.5", "glm-4.5"),
    wheel(MOE, "zai-org/GLM-5"),
    wheel(MOE, "zai-org/GLM-5.1"),
    wheel(MOE, "zai-org/GLM-5.2"),
    wheel(MOE, "zai-org/GLM-5.3"),
    default(VLM, "zai-org/GLM-4.1V-9B-Thinking", "Glm4vConfig", text_config=by.glm41v_text()),
    wheel(MOE, "openai/gpt-oss-20b"),
    wheel(MOE, "openai/gpt-oss-120b"),
    wheel(MOE, "MiniMaxAI/MiniMax-M2.5"),
    wheel(MOE, "MiniMaxAI/MiniMax-M2.7"),
    wheel(MOE, "XiaomiMiMo/MiMo-V2-Flash"),
    wheel(MOE, "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
    wheel(
        MOE, "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", place="nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
        without=("quantization_config",),
    ),
    wheel(MOE, "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16"),
    wheel(DENSE, "nvidia/Nemotron-H-56B-Base-8K"),
    default(DENSE, "microsoft/Phi-3-mini-4k-instruct", "Phi3Config"),
    written(DENSE, "microsoft/phi-4", by.phi4()),
    default(MOE, "microsoft/Phi-3.5-MoE-instruct", "PhimoeConfig"),
    written(
        DENSE, "allenai/OLMo-2-1124-7B", by.olmo2(4096, 32, 32, 32, 11008, 100352), "allenai/OLMo-2-1124-7B-Instruct"
    ),
    written(
        DENSE, "allenai/OLMo-2-1124-13B", by.olmo2(5120, 40, 40, 40, 13824, 100352),
        "allenai/OLMo-2-1124-13B-Instruct",
    ),
    written(
        DENSE, "ibm-granite/granite-3.3-8b-instruct", by.granite33_8b(), "ibm-granite/granite-3.3-8b-base"
    ),
    default(MOE, "baidu/ERNIE-4.5-21B-A3B-PT", "Ernie4_5_MoeConfig"),
    default(DENSE, "CohereForAI/c4ai-command-r-v01", "CohereConfig"),
    facts(MOE, "ai21labs/Jamba-v0.1", "jamba-v0.1"),
    facts(DENSE, "state-spaces/mamba2-2.7b", "mamba2-2.7b"),
    default(DENSE, "openai-community/gpt2", "GPT2Config", head="GPT2LMHeadModel"),
)  # fmt: skip

_READERS = (
    default(OCR, "lightonai/LightOnOCR-1B-1025", "LightOnOcrConfig"),
    written(OCR, "nanonets/Nanonets-OCR-s", by.qwen25_vl(2048, 36, 16, 2, 11008, 151936, tied=True)),
    written(OCR, "allenai/olmOCR-7B-0225-preview", by.qwen2_vl(3584, 28, 28, 4, 18944, 152064)),
    default(AUDIO, "openai/whisper-tiny", "WhisperConfig", head="WhisperForConditionalGeneration"),
    written(AUDIO, "openai/whisper-base", by.whisper(512, 6, 8)),
    written(AUDIO, "openai/whisper-small", by.whisper(768, 12, 12)),
    written(AUDIO, "openai/whisper-medium", by.whisper(1024, 24, 16)),
    facts(AUDIO, "openai/whisper-large-v3", "whisper-large-v3"),
    written(
        AUDIO, "openai/whisper-large-v3-turbo",
        by.whisper(1280, 32, 20, decoder_layers=4, num_mel_bins=128, vocab_size=51866, torch_dtype=by.FLOAT16),
    ),
    default(AUDIO, "facebook/wav2vec2-base-960h", "Wav2Vec2Config", head="Wav2Vec2ForCTC"),
    default(AUDIO, "mistralai/Voxtral-Mini-3B-2507", "VoxtralConfig"),
    default(AUDIO, "nvidia/parakeet-tdt-0.6b-v3", "ParakeetTDTConfig"),
    default(AUDIO, "laion/clap-htsat-fused", "ClapConfig"),
)  # fmt: skip

_ENCODERS = (
    written(EMBEDDING, "Qwen/Qwen3-Embedding-0.6B",
            by.qwen3(1024, 28, 16, 8, 3072, 151669, tied=True, positions=32768)),
    written(EMBEDDING, "Qwen/Qwen3-Embedding-4B", by.qwen3(2560, 36, 32, 8, 9728, 151665, tied=True)),
    default(EMBEDDING, "google-bert/bert-base-uncased", "BertConfig", head="BertModel"),
    facts(EMBEDDING, "google-bert/bert-large-uncased", "bert-large"),
    default(EMBEDDING, "FacebookAI/roberta-base", "RobertaConfig", head="RobertaForMaskedLM"),
    written(EMBEDDING, "FacebookAI/xlm-roberta-base", by.xlm_roberta(768, 12, 12, 3072)),
    default(EMBEDDING, "answerdotai/ModernBERT-base", "ModernBertConfig", head="ModernBertForMaskedLM"),
    default(EMBEDDING, "nomic-ai/nomic-embed-text-v1.5", "NomicBertConfig"),
    written(EMBEDDING, "sentence-transformers/all-MiniLM-L6-v2", by.bert(384, 6, 12, 1536)),
    written(EMBEDDING, "BAAI/bge-small-en-v1.5", by.bert(384, 12, 12, 1536)),
    written(EMBEDDING, "BAAI/bge-base-en-v1.5", by.bert(768, 12, 12, 3072)),
    written(EMBEDDING, "BAAI/bge-large-en-v1.5", by.bert(1024, 24, 16, 4096), "mixedbread-ai/mxbai-embed-large-v1"),
    written(EMBEDDING, "BAAI/bge-m3", by.xlm_roberta(1024, 24, 16, 4096, positions=8194)),
    written(EMBEDDING, "intfloat/multilingual-e5-large", by.xlm_roberta(1024, 24, 16, 4096)),
    default(VISION, "google/vit-base-patch16-224", "ViTConfig", head="ViTForImageClassification",
            num_labels=1000),
    written(VISION, "google/vit-large-patch16-224", by.vit(1024, 24, 16, 16)),
    written(VISION, "facebook/dinov2-base", by.dinov2(768, 12, 12)),
    written(VISION, "facebook/dinov2-large", by.dinov2(1024, 24, 16)),
    written(VISION, "facebook/dinov2-giant", by.dinov2(1536, 40, 24, swiglu=True)),
    default(VISION, "openai/clip-vit-base-patch32", "CLIPConfig", head="CLIPModel"),
    written(VISION, "openai/clip-vit-large-patch14", by.clip_large()),
    default(VISION, "google/siglip-base-patch16-224", "SiglipConfig", head="SiglipModel"),
    written(VISION, "google/siglip-so400m-patch14-384", by.siglip_so400m()),
    default(PAIR, "google-t5/t5-small", "T5Config"),
    written(PAIR, "google-t5/t5-base", by.t5(768, 12, 12, 3072)),
    written(PAIR, "google-t5/t5-large", by.t5(1024, 24, 16, 4096)),
    facts(PAIR, "google-t5/t5-3b", "t5-3b"),
    default(PAIR, "facebook/bart-large", "BartConfig"),
)  # fmt: skip

MODELS = (*_LLAMA, *_QWEN, *_DEEPSEEK, *_MISTRAL, *_GOOGLE, *_OTHER_LLMS, *_READERS, *_ENCODERS)
