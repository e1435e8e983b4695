"""Command-line tools for people and scripts, one file each."""
