"""Tables and draws, before they are examples."""
