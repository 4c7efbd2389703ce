"""The sources compile while the other tests run."""

import pytest

from tests.helpers.background_compiler import BackgroundCompiler
from tests.ops import test_sources

COMPILER = pytest.StashKey[BackgroundCompiler]()


def pytest_collection_finish(session):
    chosen = any(item.name == "test_every_source_compiles" for item in session.items)
    if chosen and test_sources.NVCC and not session.config.option.collectonly:
        compiler = session.stash[COMPILER] = BackgroundCompiler()
        compiler.start(test_sources.kernel_jobs)
        compiler.start(test_sources.host_jobs)


def pytest_sessionfinish(session):
    if COMPILER in session.stash:
        session.stash[COMPILER].close()


@pytest.fixture
def background_compiler(request) -> BackgroundCompiler:
    return request.session.stash[COMPILER]
