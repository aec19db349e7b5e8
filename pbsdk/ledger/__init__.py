"""One run folder: what was asked, what was answered, and what may still be spent."""
