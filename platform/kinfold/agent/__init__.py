"""Who decides: the agent loop, its context, its endings, and the delegation to subagents."""
