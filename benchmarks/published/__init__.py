"""Predictions for DeepSeek-OCR, compared with what was published of it."""
