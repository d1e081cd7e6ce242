"""Running a job: its stages, in which the ranks of one or more jobs make the missing items.

Each stage hands out its items in the same way, so several jobs may fill one folder; each ends when
the folder is complete. A restart makes only the items that are missing.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline import shards
from pipeline.common.command_line import shown
from pipeline.common.files import replace_bytes, replace_json
from pipeline.manifest import keep_version, write_manifest
from preprocessing.dataset.statistics import Statistics
from preprocessing.jobs.duplicate_stages import duplicate_stages, without_duplicates
from preprocessing.jobs.job import Job, check_complete, open_output, remove_working_files
from preprocessing.jobs.job_progress import JobProgress
from preprocessing.jobs.leases import Leases
from preprocessing.jobs.manifest import build_manifest, summary
from preprocessing.jobs.mpi import MpiWorld, run_as_coordinator, run_as_worker
from preprocessing.jobs.stage import JobStage, array_stage, item_sizes, naming, reported
from preprocessing.readers.inputs import Listing


def run(
    prepare: Callable[[Listing | None], Job], finish_only: bool = False, report: bool = False
) -> None:
    """Make the dataset that `prepare` describes, or what is missing of it, on all ranks.

    `prepare(None)` lists the inputs, `prepare(listing)` takes another rank's listing.
    `finish_only` makes no shard: it checks that all are there and writes the manifest. `report`
    also writes a page about it. Raises ValueError on bad input, on a folder that holds
    results of other settings, and where no document is kept.
    """
    world = MpiWorld()
    if world.rank == 0:  # first and alone: it looks at the inputs, and an error is reported once
        job = prepare(None)
        open_output(job)
        if finish_only:
            check_complete(job)
        world.broadcast(job.listing)
    else:
        job = prepare(world.broadcast(None))
    for stage in _stages(job, world):
        stage.folder.mkdir(parents=True, exist_ok=True)
        if world.rank:
            run_as_worker(world, stage.make)
            continue
        title = f"{job.name}, {stage.name}"
        with (
            Leases(stage.folder, len(stage.sizes), stage.is_done) as leases,
            JobProgress(title, stage.sizes, leases) as progress,
        ):
            run_as_coordinator(world, leases, stage.make, progress.show)
    if world.rank == 0:
        # Of processes killed while or after they wrote the manifest: nothing needs it any more.
        _remove(job.folder("manifest"), ".*.tmp", "*.claim-*")
        manifest = shards.Dataset(job.output).manifest
        if report:
            from preprocessing.dataset.report import FOLDER, write_report  # matplotlib is slow

            page = write_report(manifest, job.output / FOLDER)
            if job.uploads:
                job.uploads.add(page, page.name)
        print(summary(job, manifest), flush=True)


def _stages(job: Job, world: MpiWorld) -> Iterator[JobStage]:
    """The stages of a job; rank 0 decides which."""
    sizes = item_sizes(job, world)
    texts = job.evaluation_texts
    if (texts or job.compares_inputs) and world.broadcast(world.rank == 0 and bool(job.missing())):
        if texts:
            folder, make = texts.index.parent, lambda *_: texts.build()
            yield array_stage("evaluation texts", folder, [0], make, lambda: job.is_complete)
        if job.compares_inputs:
            yield from duplicate_stages(job, world)
    yield JobStage(
        "samples",
        job.folder(),
        sizes,
        job.is_made,
        lambda item, progress: _make_shard(job, item, progress),
    )
    yield JobStage(
        "manifest",
        job.folder("manifest"),
        [0],
        lambda _: job.is_complete,
        lambda *_: _finish(job),
    )


def _make_shard(job: Job, item: int, progress: Callable[[int, int], None]) -> None:
    """Write one item's shard, upload it where it belongs on a store, then write its marker."""
    statistics = Statistics()
    entries = job.screened(reported(job.read(job.items[item]), progress))
    if job.compares_inputs:
        entries = without_duplicates(job, item, entries)
    keyed = ((f"{item:05d}-{key}", sample) for key, sample in job.samples(entries, statistics))
    with few_collections(), naming(job.items[item]):
        entry = shards.write_shard(job.output / f"{job.name}-{item:05d}-00000", keyed, job.id_dtype)
    if job.uploads:
        job.uploads.move(job.output, entry)
    marker = {
        "fingerprint": job.fingerprints[item],
        "shard": entry,
        "statistics": statistics.to_json(),
        **(
            {"left_out": [*map(shown, left_out)]}
            if (left_out := job.left_out(job.items[item]))
            else {}
        ),
    }
    replace_json(job.marker(item), marker)


@contextmanager
def few_collections() -> Iterator[None]:
    """Collect garbage rarely: samples are many objects without reference cycles, and a collection
    after every 700 of them takes 8 % of the time."""
    usual = gc.get_threshold()
    gc.set_threshold(100_000, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _finish(job: Job) -> None:
    """Write the manifest, after removing everything that only the job needed."""
    manifest = build_manifest(job)
    _remove_leftovers(job)
    if job.extending.exists():
        kept = keep_version(job.output)
        if job.uploads:
            job.uploads.add(kept)
    replace_bytes(job.output / job.tokenizer.file_name, job.tokenizer.path.read_bytes())
    if job.uploads:
        job.uploads.finish(manifest, job.folder("manifest"))
    write_manifest(job.output, manifest)
    job.extending.unlink(missing_ok=True)


def _remove_leftovers(job: Job) -> None:
    """Remove the files of killed processes and the working files of finished stages."""
    _remove(job.output, ".*.tmp")
    _remove(job.folder(), ".*.tmp", "*.claim-*")
    remove_working_files(job)


def _remove(folder: Path, *patterns: str) -> None:
    """Remove the files of a folder whose names match; another job may do the same."""
    for pattern in patterns:
        for leftover in folder.glob(pattern):
            leftover.unlink(missing_ok=True)
