"""The backend around a backend, and its rehearsal."""
