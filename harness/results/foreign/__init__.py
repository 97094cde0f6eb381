"""What other tools measured, read from their files: one module a tool, `formats` tells them apart by their content.

- Files are bounded and read as far as they carry; what they do not say stays None.
- A tool's own figures are taken as they are. Throughput is over its whole run, beginning and end included, where Knee's
  is over a steady window; `ForeignResult.lacks` says so wherever the figures are shown.
- Requests one by one, which some tools can add to their files, are not read.
"""
