"""Pages for people. Drawn by the server; a page loads nothing from elsewhere and runs no script but ours.

Our scripts fetch parts of pages and send answers; text that a client gave is escaped by jinja2, and by nothing else.
"""
