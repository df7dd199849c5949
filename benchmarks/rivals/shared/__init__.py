"""Code that several rivals share."""
