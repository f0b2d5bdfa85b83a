"""The decision core: `handle(event, now) -> commands`. No input or output, no thread, no clock, no torch."""
