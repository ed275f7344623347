"""What the theme brings and no page uses is left out."""


def setup(app):
    # Jupyter Book sets it for sphinx-comments, which this book leaves out; unknown values warn.
    app.add_config_value("comments_config", {}, "html")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
