"""Pages for people. Law: drawn by the server; a page loads nothing from elsewhere and runs no script but ours.

Our scripts fetch parts of pages and send answers; what a client gave is text, which jinja2 alone escapes.
"""
