"""Beliefs: what is assumed of a function before any data.

They are specifications only and hold no data; ``posterior`` keeps them current.
``feedback`` says when observations count.
"""
