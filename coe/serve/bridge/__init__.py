"""The bridge: it tells other machines what happens. An event leaves the outbox once its sink acknowledged it.

`sinks` says what a sink is, and makes the sinks of a config. `mqtt`, `amqp`, `webhook` and `opcua` are
kinds of sinks, `cfx` is a format of messages. Each sink has a thread of its own (`outbox_relay`), so that no sink
waits for another.
"""
