"""Texts, chats and images as tokens."""
