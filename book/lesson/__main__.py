"""The command line: python -m lesson report | bench | long | record | check | launch, in book/."""

import argparse
import sys

from . import backend as backends
from . import cases, evidence, paths, results, source
from .errors import CompileError, GateError, InputError, LaunchError, LessonError, RaceError
from .gate import judge
from .progress import Progress
from .reference import attention

PASSED, WRONG, UNUSABLE = 0, 1, 2


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m lesson", description="Attention, two ways: the lesson's command line.")
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name, run, text):
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        return sub

    sub = add("report", _report, "Print device, bytes, facts, gates and times, in that order. "
              "Exit code 1 if a gate failed.")
    _backend_option(sub)

    sub = add("bench", _bench, "Gate every rung of the ladder on this GPU, then time the rungs and "
              "what else computes attention in float32: CuPy's and, where it is installed, "
              "PyTorch's. Exit code 1 if a gate failed.")

    sub = add("long", _long, "Run a sequence whose score matrix cannot exist, gated on sampled "
              "query rows; first the estimate, and without --n the size that this GPU finishes in "
              "about ten seconds. Ctrl-C stops it between two pieces.")
    sub.add_argument("--n", type=int, help="keys and queries, a multiple of 128")

    sub = add("record", _record, "Measure on this GPU and write the evidence file that the book "
              "shows. Counters need ncu, the sanitizer's part compute-sanitizer; what is not "
              "installed is left out.")
    sub.add_argument("--out", help="file to write (default: book/evidence/GPU-DATE.json)")
    sub.add_argument("--only", choices=("lesson",), help="'lesson': the two paths alone, "
                     "without the ladder and the long sequences")

    sub = add("check", _check, "Gate a CUDA file that defines attentionOnline (or, with --path "
              "materialised, the three kernels) with the lesson's signature and launch geometry. "
              "Exit code 0: passed; 1: a result was wrong, depended on the order of threads, or an "
              "input was touched; 2: it could not be compiled or did not run to its end.")
    sub.add_argument("file", metavar="FILE.cu")
    sub.add_argument("--path", choices=tuple(paths.PATHS), default="online")
    sub.add_argument("--n", type=int, default=256, help="keys and queries, a multiple of 64 (256)")
    sub.add_argument("--case", choices=cases.NAMES, action="append", help="this case alone")
    _backend_option(sub)

    sub = add("launch", _launch, "Launch every kernel of both paths on this GPU and print nothing: "
              "what record runs under ncu and compute-sanitizer.")
    sub.add_argument("--n", type=int, default=256)
    sub.add_argument("--repeats", type=int, default=1)
    sub.add_argument("--ladder", action="store_true", help="the rungs of the ladder instead")
    sub.add_argument("--plain-memory", action="store_true",
                     help="no memory pool, so that each buffer's bounds are checked")

    arguments = parser.parse_args(argv)
    try:
        return arguments.run(arguments)
    except GateError as error:
        print(error, file=sys.stderr)
        return WRONG
    except LessonError as error:
        print(error, file=sys.stderr)
        return UNUSABLE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _backend_option(sub):
    sub.add_argument("--backend", choices=("live", "emulated"), help="run on this GPU, or emulate "
                     "on the host (default: the GPU if there is one)")


def _report(arguments):
    from .report import report

    failures = report(arguments.backend)
    for message in failures:
        print(message, file=sys.stderr)
    return WRONG if failures else PASSED


def _record(arguments):
    from .record import file_name, record

    whole = arguments.only is None
    with Progress() as progress:
        item = record(progress, bench=whole, long=whole)
    path = evidence.write(item, arguments.out or file_name(item))
    print(f"recorded {item.gpu}, {item.day}: {path}")
    return PASSED


def _check(arguments):
    text = source.from_file(arguments.file)
    backend = backends.choose(arguments.backend)
    if backend is None:
        from .host import available

        raise LessonError(f"nothing to run a kernel on: {backends.probe().reason}; "
                          f"{available()[1]}")
    cases.check_n(arguments.n)
    names = arguments.case or cases.NAMES
    worst = PASSED
    print(f"{arguments.file}, {arguments.path} path, N = {arguments.n}, {backend.mark}: "
          f"{backend.describe()}")
    try:
        backend.compile(text)
    except CompileError as error:
        print(error, file=sys.stderr)
        return UNUSABLE
    with Progress() as progress:
        for i, name in enumerate(names):
            progress(name, i, len(names))
            code, line = check_case(backend, arguments.path, name, arguments.n, text)
            print(f"{name:13} {line}", flush=True)
            worst = max(worst, code)
            if code == UNUSABLE:
                break  # it would fail on every case in the same way
    if worst == PASSED:
        print("all cases passed their gates")
    return worst


def check_case(backend, path, name, n, text):
    """Gate a Source on one case: (exit code, a line that says why)."""
    case = cases.make(name, n)
    try:
        output = results.run_path(backend, path, case, text)
    except RaceError as error:
        return WRONG, f"fail: {error}"
    except InputError as error:
        return WRONG, f"fail: {error}"
    except LaunchError as error:
        return UNUSABLE, f"did not run to its end: {error}"
    ref = attention(case.q, case.k, case.v)
    verdict = judge(output, ref.o, n, ref.max_abs_score)
    if verdict.passed:
        return PASSED, f"pass at {verdict.fraction:.3f} of the gate"
    return WRONG, f"fail: {verdict.explain(path, name, n)}"


def _launch(arguments):
    backend = backends.choose("live")
    if arguments.plain_memory:
        backend.cupy.cuda.set_allocator(None)
    if arguments.ladder:
        from . import ladder

        ladder.launch_all(backend, arguments.n)
    else:
        results.launch_all(backend, arguments.n, arguments.repeats)
    return PASSED


def _bench(arguments):
    from . import bench

    backend = backends.choose("live")
    with Progress() as progress:
        found = bench.measure(backend, progress)
    print(bench.show(found, note=backend.describe()).text())
    return PASSED


def _long(arguments):
    from . import impossible

    backend = backends.choose("live")
    unit = impossible.calibrate(backend)
    print(impossible.estimates_table(backend, unit).text() + "\n", flush=True)
    n = arguments.n or impossible.offer(backend, unit)
    cases.check_n(n)
    with Progress() as progress:
        found = impossible.run(backend, n, progress, unit)
    print(impossible.table([found], note=backend.describe()).text())
    return PASSED


if __name__ == "__main__":
    sys.exit(main())
