"""The command line, in book/: python -m lesson report | bench | long | ranks | record | check |
mutants | launch."""

import argparse
import sys

from .errors import ArgumentError, CompileError, GateError, LaunchError, LessonError
from .launch import paths
from .machine import backend as backends
from .machine import nvrtc, prints
from .measure import evidence, gates_and_times, records
from .problem import cases
from .problem.problem import of
from .progress import Progress
from .spread import processes, run
from .text import source

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

    sub = add("long", _long, "Run a long sequence without its score matrix, gated on sampled "
              "query rows; first the estimate, and without --n the size that this GPU finishes in "
              "about ten seconds. Ctrl-C stops it between two pieces.")
    sub.add_argument("--n", type=int, help="keys and queries, a multiple of 128")

    sub = add("ranks", _ranks, "Deal keys to ranks, each of which makes its part, and merge the "
              "parts; or pass the keys round a ring. Alone this process drives every GPU that it "
              "sees, through NCCL; under mpiexec each process is a rank. Gated on sampled query "
              "rows. A run that was stopped goes on from its finished chunks.")
    sub.add_argument("--n", type=int, default=65536, help="keys and queries (65536)")
    sub.add_argument("--way", choices=run.WAYS, default=run.WAYS[0])
    sub.add_argument("--ranks", type=int, help="without mpiexec: GPUs to use (all), or ranks of "
                     "NumPy in this process (1)")
    sub.add_argument("--backend", choices=("live", "emulated", "numpy"), help="what a rank "
                     "computes with (a GPU where there is one, else numpy; emulated is for small "
                     "N)")
    sub.add_argument("--case", choices=cases.NAMES, default="random")
    sub.add_argument("--chunk", type=int, help="query rows that are merged at a time")
    sub.add_argument("--keep", metavar="FOLDER", help="where finished chunks are kept until the "
                     "run ends (default: one for this N, case and chunk in the user's cache)")
    sub.add_argument("--record", metavar="FILE", help="instead: measure 1, 2, 4, .. of this "
                     "machine's GPUs by both ways and add that to a recorded run of this GPU")
    sub.add_argument("--seconds", type=float, help="with --record: of the largest N (180)")

    sub = add("record", _record, "Measure on this GPU and write the evidence file that the book "
              "shows. Counters need ncu, the sanitizer's part compute-sanitizer; what is not "
              "installed is left out. Each part is kept once it has been measured.")
    sub.add_argument("--out", help="file to write (default: book/evidence/GPU-DATE.json)")
    sub.add_argument("--only", choices=("lesson",), help="'lesson': the two paths alone, "
                     "without the ladder and the long sequences")

    sub = add("check", _check, "Gate a CUDA file that defines attentionOnline (or, with --path "
              "materialised, the three kernels) with the lesson's signature and launch geometry. "
              "Exit code 0: passed; 1: a result was wrong, depended on the order of threads, or an "
              "input was touched; 2: it could not be compiled or did not run to its end.")
    sub.add_argument("file", metavar="FILE.cu")
    sub.add_argument("--path", choices=tuple(paths.PATHS), default="online")
    sub.add_argument("--n", type=int, default=records.GATE_N,
                     help=f"keys and queries, a multiple of 64 ({records.GATE_N})")
    sub.add_argument("--case", choices=cases.NAMES, action="append", help="this case alone")
    _backend_option(sub)

    sub = add("mutants", _mutants, "Change the two paths and the rungs of the ladder in every "
              "small way, gate each mutant on the host, and write what became of them to "
              "book/evidence/mutants/. What has run and has not changed since is not run again; a "
              "run that was stopped goes on. Exit code 1 if a mutant passes that should not.")
    sub.add_argument("--workers", type=int, help="processes (all cores)")

    sub = add("launch", _launch, "Launch every kernel of both paths on this GPU and print nothing: "
              "what record runs under ncu and compute-sanitizer.")
    sub.add_argument("--n", type=int, default=256)
    sub.add_argument("--repeats", type=int, default=1)
    sub.add_argument("--ladder", action="store_true", help="the rungs of the ladder instead")
    sub.add_argument("--use", action="store_true",
                     help="the kernels for any problem instead")
    sub.add_argument("--tensor", action="store_true",
                     help="the final rungs and those on tensor cores instead")
    sub.add_argument("--plain-memory", action="store_true",
                     help="no memory pool, so that each buffer's bounds are checked")

    with processes.said_once():
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
    from .show.report import report

    failures = report(arguments.backend)
    for message in failures:
        print(message, file=sys.stderr)
    return WRONG if failures else PASSED


def _record(arguments):
    from .measure.record import file_name, record

    def keep(item):
        return evidence.write(item, arguments.out or file_name(item))

    with Progress() as progress:
        item = record(progress, whole=arguments.only is None, keep=keep)
    path = keep(item)
    print(f"recorded {item.gpu}, {item.day}: {path}")
    return PASSED


def _check(arguments):
    text = source.from_file(arguments.file)
    backend = backends.choose(arguments.backend)
    if backend is None:
        from .machine.emulator import available

        raise LessonError(f"nothing to run a kernel on: {backends.probe().reason}; "
                          f"{available()[1]}")
    paths.HANDLES.refuse(of(arguments.n))
    names = arguments.case or cases.NAMES
    worst = PASSED
    print(f"{arguments.file}, {arguments.path} path, N = {arguments.n}, {backend.mark}: "
          f"{backend.describe()}")
    compiler, reason = nvrtc.available()
    if not compiler:
        print(f"what only a GPU's compiler refuses was not looked for: {reason}")
    try:
        backend.compile(text)
    except CompileError as error:
        print(error, file=sys.stderr)
        return UNUSABLE
    ran = 0
    try:
        with prints.limited():
            for name, found in gates_and_times.outcomes(backend, arguments.path, text,
                                                        arguments.n, names):
                print(f"{name:13} {_line(found, arguments.path, name, arguments.n)}", flush=True)
                worst = max(worst, PASSED if found.passed else WRONG)
                ran += 1
    except LaunchError as error:  # it would fail on every case in the same way
        print(f"{names[ran]:13} did not run to its end: {error}", flush=True)
        return UNUSABLE
    if worst == PASSED:
        print("all cases passed their gates")
    return worst


def _mutants(arguments):
    from .measure import mutation_run
    from .show.mutation_score import HOLE, by_source, outcomes, score

    with Progress() as progress:
        record = mutation_run.run(
            workers=arguments.workers, record=mutation_run.read(),
            say=lambda what, done, total, left: progress(
                f"{what}, {left / 60:.0f} minutes left", done, total))
    path = mutation_run.write(record)
    found = outcomes(record)
    print(by_source(found, f"on the host, {record.day}").text())
    print(f"{score(found)}\nwritten: {path}")
    holes = [o for o in found if o.word == HOLE]
    for o in holes:
        print(f"a hole: {o.mutant.diff()}", file=sys.stderr)
    return WRONG if holes else PASSED


def _line(found, path, name, n):
    """What an Outcome says, in a line."""
    if found.passed:
        return f"pass at {found.verdict.fraction:.3f} of the gate"
    return "fail: " + (found.verdict.reason if found.stopped else
                       found.verdict.explain(path, name, n))


def _launch(arguments):
    backend = backends.choose("live")
    if arguments.plain_memory:
        backend.cupy.cuda.set_allocator(None)
    if arguments.use:
        from .launch import use

        use.launch_all(backend)
    elif arguments.ladder or arguments.tensor:
        from .launch import ladder, rungs

        ladder.launch_all(backend, arguments.n,
                          rungs.FINAL_AND_TENSOR if arguments.tensor else rungs.RUNGS)
    else:
        gates_and_times.launch_all(backend, arguments.n, arguments.repeats)
    return PASSED


def _bench(arguments):
    from .measure import bench
    from .show.comparison import bench_tables

    backend = backends.choose("live")
    with Progress() as progress:
        found = bench.measure(backend, progress)
    print(bench_tables(found, note=backend.describe()).text())
    return PASSED


def _ranks(arguments):
    from .show.several_gpus import table

    with processes.said_once():
        run.check(arguments.n, arguments.way, arguments.chunk)
        if arguments.ranks is not None and not 1 <= arguments.ranks <= 1024:
            raise ArgumentError(f"ranks = {arguments.ranks}: choose 1 to 1024")
        if arguments.seconds is not None and arguments.record is None:
            raise ArgumentError(f"seconds = {arguments.seconds:g}: is of --record alone")
    if arguments.record is not None:
        return _record_ranks(arguments)
    size = processes.place()[1]

    def work():
        comm = None
        try:
            if size > 1:
                comm = processes.communicator()
            with party_of(comm) as party, Progress() as progress:
                found = run.run(party, cases.make(arguments.case, arguments.n), arguments.way,
                                arguments.chunk, folder(), progress)
            if found is not None:
                print(table(found).text(), flush=True)
            return PASSED
        except KeyboardInterrupt:
            print("interrupted: finished chunks are kept", file=sys.stderr)
            return 130
        except Exception as error:
            return processes.ended(error, comm)

    def party_of(comm):
        if comm is not None:
            return run.of_processes(comm, arguments.backend)
        if arguments.backend == "live" or arguments.backend is None and backends.probe().gpu:
            backends.choose("live")
            return run.gpus_here(arguments.ranks)
        backend = backends.choose("emulated") if arguments.backend == "emulated" else None
        return run.in_this_process(arguments.ranks or 1, backend)

    def folder():
        from .machine import cache

        if arguments.keep is not None or arguments.way == "ring":
            return arguments.keep
        return cache.folder() and cache.folder() / (
            f"ranks-{arguments.case}-{arguments.n}-{arguments.chunk or 'chunks'}")

    return processes.watched(work) if size > 1 else work()


def _record_ranks(arguments):
    from .measure import several_gpus
    from .show.several_gpus import recorded_table

    with Progress() as progress:
        item, path = several_gpus.record(
            progress, arguments.record,
            limit_s=several_gpus.LIMIT_S if arguments.seconds is None else arguments.seconds,
            say=lambda row: print(row, flush=True))
    print(recorded_table(item).text())
    print(f"recorded {item.gpu}, {item.several.date[:10]}: {path}")
    return PASSED


def _long(arguments):
    from .measure import long_sequences
    from .show.long_sequences import estimates_table, table

    backend = backends.choose("live")
    unit = long_sequences.calibrate(backend)
    print(estimates_table(backend, unit).text() + "\n", flush=True)
    n = arguments.n or long_sequences.offer(backend, unit)
    paths.HANDLES.refuse(of(n))
    with Progress() as progress:
        found = long_sequences.run(backend, n, progress, unit)
    print(table([found], note=backend.describe()).text())
    return PASSED


if __name__ == "__main__":
    sys.exit(main())
