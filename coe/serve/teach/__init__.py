"""A board that a person makes at the pages of the service: a draft is a folder of the files that the commands write.

Each step runs a command, or edits a file that one wrote. So a board begun with commands goes on here, and the other way
round.
"""
