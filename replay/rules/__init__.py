"""The rules of `check`: the table of names and severities, and a module for each subject."""
