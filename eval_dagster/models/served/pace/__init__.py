"""When requests are sent: concurrency, rates, attempts and shared limits."""
