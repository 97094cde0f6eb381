"""A result folder, and other tools' files: the one room that knows their bytes.

- The parquet keeps arrivals to 2⁻²⁶ s (15 ns), far below their error, at half the size of full doubles.
- A frame of the spool is written whole or taken back. What is written survives the death of any process; a segment
  that is full is synced to the disk, and survives the machine's.
- A segment of the spool reads up to the first frame that is not whole, not ours or not possible (a power cut leaves
  zeros there), and the others as they are; the verdict `spool_damaged` has how much is lost. `--resume` keeps what it
  cannot read as `requests.spool.damaged-N`.
- Files from outside go through `decoding.py`: regular files of bounded size, decoded as their type (`manifest.py`),
  numbers within reason. `columns.py` checks the row counts of a parquet file before it reads a row. What is wrong
  is one line, with the file.
"""
