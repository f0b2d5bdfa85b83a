"""The line as a service: a gate for boards, a line that decides them, a database that is the truth (docs/serve.md)."""
