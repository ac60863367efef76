"""The models that questions are asked about."""

RUNS = {  # of each model: the cheap to trace have more
    "meta-llama/Llama-3.2-1B": 2,
    "google/gemma-3-1b-it": 1,  # sliding windows, one key head
    "openai/gpt-oss-20b": 1,  # experts, a quantised checkpoint, sinks
    "deepseek-ai/DeepSeek-V2-Lite": 1,  # latent attention, shared experts
    "openai-community/gpt2": 3,  # which transformers spreads by no plan but replicas
}
MORE_MODELS = (  # for one run each
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-30B-A3B",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",  # layers that carry a state
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B",
    "google/gemma-2-9b",  # capped scores
    "google/gemma-4-26B-A4B",
    "mistralai/Mistral-7B-v0.3",
    "mistralai/Mixtral-8x7B-v0.1",
    "microsoft/phi-4",
    "microsoft/Phi-3.5-MoE-instruct",
    "allenai/OLMo-2-1124-7B",  # norms over all heads
    "ibm-granite/granite-3.3-8b-instruct",
    "Qwen/Qwen2.5-VL-7B-Instruct",  # a decoder behind a vision tower
    "openai/gpt-oss-120b",
    "zai-org/GLM-4.5",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",  # experts without a gate, layers that carry a state
    "deepseek-ai/DeepSeek-V3",
    "moonshotai/Kimi-K2-Instruct",
)
