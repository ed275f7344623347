"""Asynchronous copies that arrive as late as they may: when their thread waits for them.

On the host the kernels of the ladder copy at once, and waiting does nothing; so a wait that is
missing would not be seen. This puts a host's part into a kernel's text in which a copy is only
noted, and made where its thread waits.
"""

import re

from ..errors import LessonError

_NOTED = """\
#ifndef __CUDA_ARCH__
struct LateCopy { unsigned* to; const unsigned* from; int words; };
__device__ LateCopy lateCopies[256][512];
__device__ int lateCount[256];
__device__ void copyLate(void* to, const void* from, int words)
{
    lateCopies[threadIdx.x][lateCount[threadIdx.x]++] =
        {(unsigned*)to, (const unsigned*)from, words};
}
__device__ void makeCopies()
{
    for (int i = 0; i < lateCount[threadIdx.x]; ++i)
        for (int word = 0; word < lateCopies[threadIdx.x][i].words; ++word)
            lateCopies[threadIdx.x][i].to[word] = lateCopies[threadIdx.x][i].from[word];
    lateCount[threadIdx.x] = 0;
}
#endif
"""
_COPY = re.compile(r"(asm volatile\(\"cp\.async\.c\w\.shared\.global \[%0\], \[%1\], (\d+);\".*?\n"
                   r"#else\n)[^\n]*\n(#endif)")
_WAIT = re.compile(r"(asm volatile\(\"cp\.async\.wait_all;\"[^\n]*\n)(#endif)")


def late(text):
    """A kernel's text in which the host's copies arrive when they are waited for.

    Raises LessonError for a text that has no asynchronous copies in the ladder's form.
    """
    text, copies = _COPY.subn(
        lambda m: f"{m[1]}    copyLate(to, from, {int(m[2]) // 4});\n{m[3]}", text)
    text, waits = _WAIT.subn(r"\1#else\n    makeCopies();\n\2", text)
    if not (copies and waits):
        raise LessonError("no asynchronous copies of the ladder's form are in this kernel")
    return _NOTED + text
