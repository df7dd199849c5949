"""Files of the data folder: paths, write access, the manifest of the index, the vector store."""
