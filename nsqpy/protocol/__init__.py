"""The NSQ wire protocol, sans I/O: bytes in, values out, and back."""
