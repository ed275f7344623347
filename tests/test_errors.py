"""What a reader sees of an error."""


from lesson.errors import LessonError


def test_a_lesson_error_shows_its_message_alone():
    assert LessonError("what to do")._render_traceback_() == ["LessonError: what to do"]
