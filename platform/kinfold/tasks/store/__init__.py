"""What outlives a process: sandbox records, tasks, events, steps, the ledger, definitions; one SQLite file.

    door.py       `Store`: the file's place, opened when it is first needed; cheap to import, as all of these but
    database.py   the connections, how they are set, one writer at a time
    tables.py     the tables, and what each is for
    schema.py     which version the file has; brings an older one up, refuses a newer one
    faults.py     what SQLite says, as a `StoreError` that names the file and what to do
    sandboxes.py  `StoreRecords`, the records' keeper
    tasks.py      tasks, runs and events
    definitions.py  definitions of subagents, in versions

Importing the database library takes as long as a container's start: `door` does it in a thread, when it must.
"""
