"""Servers with the API of OpenAI, for tests: real ones, a fast stub, and a proxy that injects faults."""
