"""What the programs share over asyncio and aiohttp; knows nothing of queues."""
