"""The nsqd program: moves bytes, wakes tasks, reads the clock."""
