"""The client library: producers and consumers over asyncio, and blocking wrappers."""
