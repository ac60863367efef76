"""DeepSeek-OCR: our own blueprint of the architecture, its inputs, its stages and its adapter."""
