"""Embedded mode: all of the product's processes under one supervisor."""
