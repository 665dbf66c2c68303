"""kinfold."""
