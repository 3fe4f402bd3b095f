"""How results of a GPU are checked."""
