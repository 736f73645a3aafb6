"""Studies of selection, transport and speed, a command of ``lessvfl bench`` each."""
