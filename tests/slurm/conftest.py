"""One Slurm for all tests of this folder; those that use it are slow."""

import os
from collections.abc import Iterator

import pytest
from cluster import Cluster, Unavailable
from small_site import Site


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "slurm" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Needed by all that starts a cluster: skips with the reason where none can run."""
    try:
        with Cluster(tmp_path_factory.mktemp("trial") / "cluster"):
            pass
    except Unavailable as reason:
        if os.environ.get("LOCOST_REQUIRE_SLURM") == "1":
            pytest.fail(f"LOCOST_REQUIRE_SLURM=1, but {reason}")
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def cluster(slurm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running Slurm of four nodes with four fake GPUs each."""
    with Cluster(tmp_path_factory.mktemp("slurm") / "cluster") as running:
        yield running


@pytest.fixture(scope="session")
def site(slurm: None, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A small site with the pre-training shards made."""
    site = Site(tmp_path_factory.mktemp("site"))
    site.make_shards()
    return site
