"""Store and search vectors: one immutable shard per task, verified, mapped, scanned and merged.

Import names from the modules that define them. The package itself imports nothing, so that settings and command-line
clients can use its leaf modules without loading faiss.
"""
