"""What a run asks before any load, one request at a time: each answer fills the one record of the endpoint."""
