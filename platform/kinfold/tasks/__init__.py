"""Who owns lifetimes: a parent task opens its sandbox, runs its agents, keeps the event log, and closes everything."""
