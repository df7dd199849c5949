"""Operation of a library: maintenance jobs, reports of workers, search load and their overview."""
