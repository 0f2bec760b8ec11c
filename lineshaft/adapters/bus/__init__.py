"""Bus adapters: memory, NATS JetStream, and the bundled server."""
