"""Lists of videos with captions: manifests in several formats, and sidecar files in plain folders."""
