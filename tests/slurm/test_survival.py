"""Trainings that Slurm stops in every way it has: each is resumed, no step lost or repeated."""


def test_three_links_by_time_limit_equal_one(scenarios):
    scenarios["links"].result()


def test_a_training_survives_every_interruption_by_slurm(scenarios):
    scenarios["interruptions"].result()
