"""The verbs of the command line, by what they are for; each imports what it needs when it runs."""
