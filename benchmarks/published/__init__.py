"""Predictions for DeepSeek-OCR, held against what was published of it."""
