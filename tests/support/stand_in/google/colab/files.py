"""What the lesson uses of Colab's `files`: the paths that were offered for download."""

downloads = []


def download(path):
    downloads.append(path)
