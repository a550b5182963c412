"""The private names of Dagster that this package uses. Nothing else imports from `dagster._*`; a test names them all."""
