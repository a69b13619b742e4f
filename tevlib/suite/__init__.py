"""What is run and what is kept: cells, records, papermill."""
