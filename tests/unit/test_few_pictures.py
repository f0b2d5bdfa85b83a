"""The draws of `apps.photos.few_pictures`: what is learned from is not judged."""

from pathlib import Path

from apps.photos.few_pictures import Draw, Photo, drawn, line_of


def test_a_draw_divides_no_group_and_leaves_bad_parts_to_judge() -> None:
    photos = [Photo(Path(f"{number}"), good=number % 3 > 0, group=str(number // 4)) for number in range(200)]
    learned, others = drawn(photos, 20, 20, seed=1)
    assert (sum(one.good for one in learned), len(learned)) == (20, 40)
    assert others
    assert not {one.group for one in learned} & {one.group for one in others}
    few = [Photo(Path(f"{number}"), good=number > 8) for number in range(40)]
    learned, others = drawn(few, 20, 20, seed=1)
    assert sum(not one.good for one in learned) == 4
    assert len(learned) + len(others) == 40
    assert drawn(few, 20, 20, seed=1) == (learned, others)


def test_a_row_has_the_spread_of_the_draws() -> None:
    row = line_of("nut", [Draw(10, 10, 0, 0, 1, 2.0, 0.03), Draw(10, 10, 1, 1, 0, 4.0, 0.05)])
    assert row == "| nut | 95.0% (90.0% to 100.0%) | 1 of 20 | 1 of 20 | 1 of 40 | 3.0 s | 40 ms |"
