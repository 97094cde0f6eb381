"""Requests that users really made, from files: each format is a module, each row a request, no file is read at once.

How a file holds its records is one question (`json_lines`, `json_array`, `delimited`, `parquet`), what a record means
is another (`plain`, whose names are a table, `sharegpt`, `spans`, `result`); `formats` finds both. `dataset`
opens a file by them and gives its rows; `table` writes the rows where any worker can read them.

A record is decoded strictly into the type that its format declares. What is broken is a value until somebody decides
what becomes of it: the containers and formats give an exception in the place of a record, with the place in the file.
"""
