"""What the make targets run: checks of the tree, the environment, the search for a Java."""
