"""Any local Hugging Face folder, and plausible inputs for any transformers model."""
