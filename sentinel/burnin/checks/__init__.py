"""The checks of a GPU and of a node: data with one pure function each, and what they judge by."""
