"""What ncu writes, as numbers."""
import csv
import io

import pytest
from lesson.launch import rungs
from lesson.measure import counters, records
from lesson.problem.problem import of

NCU = '''==PROF== Connected to process 1
"ID","Process ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum","lts__t_bytes.sum"
"","","","Mbyte","byte","Kbyte"
"0","1","scoresQKt(const float *, size_t)","9.0","9","9"
"1","1","scoresQKt(const float *, size_t)","1.5","1,024","2"
"2","1","attentionOnline","0","0","3"
'''


def test_counters_of_the_last_launch_in_bytes():
    rows = counters.parse_counters(NCU, 256)
    assert rows == [records.Counters("scoresQKt", of(256), 1500000, 1024, 2000),
                    records.Counters("attentionOnline", of(256), 0, 0, 3000)]


@pytest.mark.parametrize("text", ["", "==ERROR== ERR_NVGPUCTRPERM", NCU.replace("dram__", "x__")])
def test_no_counters_is_no_row(text):
    assert counters.parse_counters(text, 256) == []


def ncu_csv(launches):
    names = [m for ms in counters._METRICS.values() for m in ms]
    names += [counters._STALL.format(s) for s in counters.STALLS]
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerow(["ID", "Kernel Name", *names])
    writer.writerow(["", "", *("Mbyte" if "bytes" in n else "" for n in names)])
    for i in range(launches):
        writer.writerow([i, "attentionOnline", *(f"{i + 1}.5" for _ in names)])
    return "==PROF== noise\n" + out.getvalue()


def test_counters_are_one_launch_a_rung():
    found = counters.parse_rung_counters(ncu_csv(len(rungs.RUNGS)), 4096)
    assert [c.rung for c in found] == [r.number for r in rungs.RUNGS]
    assert found[0].dram_bytes == 3_000_000 and found[2].l2_bytes == 3_500_000
    assert found[0].busy == 1.0 and found[0].issued == 0.015
    one_less = ncu_csv(len(rungs.RUNGS) - 1)
    assert counters.parse_rung_counters(one_less, 4096) is None, "a launch is missing"
    assert counters.parse_rung_counters("==ERROR== no permission", 4096) is None
