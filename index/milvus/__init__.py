"""Vectors in Milvus, for libraries with more vectors than one machine holds."""
