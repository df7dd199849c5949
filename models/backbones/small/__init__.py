"""The backbone ``small``: EfficientNet-Lite0 and all-MiniLM-L6-v2, whose weights are installed with the project."""
