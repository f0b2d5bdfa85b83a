"""The service's database. Nothing else holds state that matters; each query is a function of a `Connection`.

`tables` has the tables and the records that are their rows, `connecting` opens a database, `migration` brings it to the
newest schema, and every other module has the queries of one subject. A caller opens the transaction, so that one may
hold queries of several subjects: a decision, its calls and its event are written together or not at all.
Times are UTC in whole microseconds (`coe.serve.clock`); the caller gives them.
"""
