"""What a file beside a task gives it."""


def flag_of(country: str) -> str:
    return {"Italy": "green", "Japan": "red"}.get(country, "blue")
