"""The bridge: it tells other machines what happens. Law: an event leaves the outbox once its sink acknowledged it.

`sinks` says what each sink can do, and `building` makes the sinks of a config. `mqtt`, `amqp`, `webhook` and `opcua`
are the connections, `event_format` and `cfx` the formats of messages. Each sink has a thread of its own
(`outbox_relay`), so that no sink waits for another. docs/architecture.md says how to add a sink.
"""
