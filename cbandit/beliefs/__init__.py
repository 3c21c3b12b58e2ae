"""Beliefs before any data: specifications, which hold no state.

A policy copies those it is given; :mod:`cbandit.posterior` keeps them current.
"""
