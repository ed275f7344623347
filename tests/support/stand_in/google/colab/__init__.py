"""Stands in for Colab's own package: with it on the path, a notebook believes it is in Colab."""
