"""Generated texts of all letters that UTF-8 can write.

`st.text()` has the same letters, and finds them by an attempt with each of a million numbers: seconds in each process.
"""

from hypothesis import strategies as st

_LETTERS = st.characters(exclude_categories=["Cs"])


def texts(max_size=None):
    return st.text(_LETTERS, max_size=max_size)
