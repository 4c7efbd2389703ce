"""The sources compile while the other tests run."""

import pytest

from tests.helpers.background_compiler import BackgroundCompiler
from tests.ops import test_sources

COMPILER = pytest.StashKey[BackgroundCompiler]()


def _start(session) -> None:
    compiler = session.stash[COMPILER] = BackgroundCompiler()
    compiler.start(test_sources.kernel_jobs, test_sources.key_of)
    compiler.start(test_sources.host_jobs, test_sources.key_of)


def pytest_collection_finish(session):
    chosen = any(item.name == "test_every_source_compiles" for item in session.items)
    one_of_several = hasattr(session.config, "workerinput")  # of pytest-xdist's processes
    if chosen and test_sources.NVCC and not session.config.option.collectonly | one_of_several:
        _start(session)


def pytest_sessionfinish(session):
    if COMPILER in session.stash:
        session.stash[COMPILER].close()


@pytest.fixture
def background_compiler(request) -> BackgroundCompiler:
    if COMPILER not in request.session.stash:  # no process knows before that the test is its own
        _start(request.session)
    return request.session.stash[COMPILER]
