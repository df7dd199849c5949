"""Resumable uploads: files of videos that arrive in parts, and become files of a task."""
