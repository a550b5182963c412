"""Encodes texts, chats and images as tokens. Its modules are imported one by one, because some need torch."""
