"""Topics, channels and sessions: every decision of the daemon, without I/O and without clocks."""
