"""What is different in Colab: how to get a GPU, and how a file leaves the runtime."""

from importlib.util import find_spec

SWITCH = "in Colab choose Runtime > Change runtime type > T4 GPU, then Runtime > Run all"


def here():
    """Whether this runs in Colab. Importing ``google.colab`` elsewhere would be an error."""
    return find_spec("google") is not None and find_spec("google.colab") is not None


def download(path):
    """Offer a file of the runtime to the reader's browser; the runtime forgets its files."""
    from google.colab import files

    files.download(str(path))
