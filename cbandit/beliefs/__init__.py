"""Beliefs before any data: specifications without state.

A policy copies the beliefs it is given; :mod:`cbandit.posterior` updates the copies.
"""
