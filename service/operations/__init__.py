"""Operating a library: maintenance jobs, worker reports, search load and an overview."""
