"""The append-only log on disk and the seam over the file system."""
