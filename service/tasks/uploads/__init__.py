"""Resumable uploads: video files that arrive in parts and become a task's files."""
