"""A first board from a placement file: its recipe, found in pictures of boards: docs/own-board.md."""
