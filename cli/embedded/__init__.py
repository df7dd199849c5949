"""The embedded mode: all processes of the product under one supervisor."""
