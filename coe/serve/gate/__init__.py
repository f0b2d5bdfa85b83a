"""The gate: all HTTP of the service. No torch; a handler uses the database and waits for nothing else.

`app` puts the parts together. Each module of operations lists its `OPERATIONS`, from which routes, access and
`/openapi.json` are made.
"""
