"""The line: the process that decides boards. Law: no network; the database is the truth, and a crash costs no board.

`station` is the loop; `items` says which pictures a board has; `product` opens an `Inspector` for a recipe; `run` holds
what is known of a begun board; `verdicts` makes a decision of that. Only `station` writes to the database.
"""
