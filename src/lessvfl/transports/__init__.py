"""Ways to carry a message between the server and the parties."""
