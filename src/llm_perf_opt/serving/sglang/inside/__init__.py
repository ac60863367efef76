"""What runs in SGLang's own environment: the only code that imports sglang."""
