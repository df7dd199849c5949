"""Remote sources of videos: web servers, and object stores through fsspec."""
