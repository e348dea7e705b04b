"""The kind `streaming`: events from Kafka through a Flink job and an endpoint to answers within seconds."""

COMMANDS = ()
