"""GOT-OCR 2.0, from the code in transformers: the worked example of a model folder."""
