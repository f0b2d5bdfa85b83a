"""The worker: the process that decides boards. No network; the database is the truth, and a crash costs no board.

`station` is the loop; `locating` finds the components of whole boards, on a thread of its own; `product` opens an
`Inspector` for a recipe; `verdicts` holds what is known of a begun board, and makes a decision of it. Only the loop's
thread writes to the database.
"""
