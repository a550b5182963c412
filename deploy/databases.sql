-- PostgreSQL runs this once, when its volume is empty; it makes the database `dagster` itself.
create database mlflow;
