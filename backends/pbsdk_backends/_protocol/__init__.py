"""What both ends of a connection agree on."""
