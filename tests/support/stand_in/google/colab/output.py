"""What anywidget asks of Colab's `output`: a widget manager that fetches a widget's front end."""

from types import SimpleNamespace

enabled = []
_widgets = SimpleNamespace(_installed_url="https://colab.invalid/manager.js")


def enable_custom_widget_manager():
    enabled.append(True)
