"""A real network of peers: one asyncio program per user, encrypted links, durable state, no server."""
