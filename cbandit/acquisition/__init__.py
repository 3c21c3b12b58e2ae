"""The policies' scores as BoTorch acquisition functions."""

from cbandit.acquisition.plugins import *  # noqa: F403
