"""The board files that ship; found by `coe.board.rules.find` wherever the package is installed."""
