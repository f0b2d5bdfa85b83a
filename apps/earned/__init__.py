"""What an OK is worth: defects that nobody taught, bad pictures among the good, and what exams predict."""
