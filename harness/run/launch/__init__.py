"""What a run asks before any load, one request at a time: each answer fills the one record of the endpoint.

`consent` comes before the first byte, `reach` connects, and `checks` asks in this order: what the server publishes and
its model (`published`), words of one token each (`words`), and the first requests (`first_requests`, whose `answers`
are read as the load will read them). `unloaded` asks canaries and audits the cache last. `limits` are this machine's.
"""
