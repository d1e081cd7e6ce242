"""One Slurm for the tests of this folder, and others for the scenarios that run meanwhile."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest

pytest.register_assert_rewrite("chain_run", "interruptions", "small_site")

from chain_run import run_whole_chain  # noqa: E402
from cluster import Cluster, Unavailable  # noqa: E402
from interruptions import (  # noqa: E402
    name_a_hanging_task,
    survive_every_interruption,
    survive_time_limits,
)
from small_site import Site  # noqa: E402

# Long jobs that mostly wait for Slurm's timers, each in its own cluster.
SCENARIOS: dict[str, Callable[[Cluster, Site], None]] = {
    "links": survive_time_limits,
    "interruptions": survive_every_interruption,
    "chain": run_whole_chain,
    "hang": name_a_hanging_task,
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a cluster are slow."""
    for item in items:
        if "slurm" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Needed by all that starts a cluster: skips with the reason where none can run."""
    with ExitStack() as stack:
        try:
            running = stack.enter_context(Cluster(tmp_path_factory.mktemp("slurm") / "cluster"))
        except Unavailable as reason:
            if os.environ.get("LOCOST_REQUIRE_SLURM") == "1":
                pytest.fail(f"LOCOST_REQUIRE_SLURM=1, but {reason}")
            pytest.skip(str(reason))
        yield running


@pytest.fixture(scope="session")
def cluster(slurm: Cluster) -> Cluster:
    """A running Slurm of four nodes with four fake GPUs each."""
    return slurm


@pytest.fixture(scope="session")
def site(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A small site with the pre-training shards made."""
    site = Site(tmp_path_factory.mktemp("site"))
    site.make_shards()
    return site


@pytest.fixture(scope="session")
def scenarios(
    slurm: Cluster, site: Site, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, "Future[None]"]]:
    """The scenarios by name, all running from now on; `result()` waits for one."""
    with ThreadPoolExecutor(len(SCENARIOS)) as pool, ExitStack() as clusters:
        yield {
            name: pool.submit(
                scenario,
                clusters.enter_context(Cluster(tmp_path_factory.mktemp(name) / "cluster")),
                site,
            )
            for name, scenario in SCENARIOS.items()
        }


@pytest.fixture(scope="session", autouse=True)
def started_early(request: pytest.FixtureRequest) -> None:
    """Start the scenarios before the first test of this folder, if a selected test needs them."""
    if any("scenarios" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("scenarios")
