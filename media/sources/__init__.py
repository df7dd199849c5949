"""Sources of videos outside the local folders: web servers, and object stores through fsspec."""
