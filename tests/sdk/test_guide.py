"""The programs of the guide to clients that need the SDK alone."""
import pytest
from support.guide import programs, run

PROGRAMS = programs("The SDK", "Modules for other providers")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_the_guide_prints_what_it_says(name, node, tmp_path):
    run(PROGRAMS[name], node, tmp_path)
