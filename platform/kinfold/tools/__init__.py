"""What an agent may do: one tool is one `.py` and one `.md` (its words to the model); `registry` knows them all."""
