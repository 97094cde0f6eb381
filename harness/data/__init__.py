"""What is on disk: the record of a request, the manifest and the summary of a run, and the findings in them.

These are typed values without behaviour, so that what measures and what reads share them and nothing else.
`results` reads and writes the files; shared names in them are a contract and stay.
"""
