"""Kernel facts as tables."""


from lesson.launch import paths
from lesson.machine.gpus import by_arch
from lesson.show import kernel_facts


def test_facts_by_architecture_is_one_table_of_all_kernels():
    table = kernel_facts.facts("all")
    cells = [cells for cells, _ in table.rows]
    assert [c[:2] for c in cells] == [(kernel, arch) for kernel in paths.KERNELS
                                      for arch in by_arch()]
    assert table.mark == "computed"
    row = next(c for c in cells if c[:2] == ("attentionOnline", "sm_75"))
    assert row[5:7] == ("1", "25%")
