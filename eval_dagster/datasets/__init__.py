"""Reads datasets: from the Hugging Face Hub, from local folders, and from files of rows."""
