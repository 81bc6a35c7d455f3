import pytest

from wisp.engines.vllm.patches.once import once


def test_the_first_install_that_comes_to_its_end_is_the_only_one():
    installed = []

    @once
    def install(what):
        if what is None:
            raise ImportError("not there yet")
        installed.append(what)

    with pytest.raises(ImportError, match="not there yet"):
        install(None)
    install("first")
    install("second")
    assert installed == ["first"]
