"""Tables of parts as people get them from other programs: text, spreadsheets, XML."""
