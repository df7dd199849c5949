"""Uploaded archives of videos: reading, manifests, and the files they are unpacked to."""
