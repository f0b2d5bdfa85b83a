"""Boards with due times on a line that binds late: the most urgent that can still be done goes first."""

from lines import arrive, board, cost, inspect, line_of, log_of


def runs(line):
    return [what for _, what in log_of(line, after=10.0) if " run " in what]


def late(line):
    return [(when, what) for when, what in line.log if what.startswith("late ")]


def test_what_is_due_first_runs_first_once_half_of_its_time_is_over():
    """Without due times the fuller batch of a would be run before b."""
    line = line_of(board({"A": 3, "B": 2}), 24, strategy="late-binding", costs={"a": cost(max_batch=1)})
    arrive(line, 10.0, "AAAA")
    line.arrive(10.0, "B", serial="S1", due_s=11.7)
    line.run()
    assert runs(line)[:4] == ["cpu0 run a x1", "cpu0 run a x1", "cpu0 run b x1", "cpu0 run a x1"]
    assert not late(line)


def test_an_image_in_a_hurry_is_taken_from_the_middle_of_its_group():
    line = line_of(board({"A": 1}), 14, strategy="late-binding", costs={"a": cost(max_batch=1)})
    arrive(line, 10.0, "AAA")
    hurried = line.arrive(10.1, "A", due_s=10.7)
    line.run()
    replies = [what for _, what in line.log if what.startswith("reply")]
    assert replies[1] == f"reply {hurried} OK"


def test_the_images_of_a_board_are_due_with_its_first():
    """The second image of S1 has time until 99, but its board is due at 11.2; it goes before that of S2."""
    line = line_of(board({"A": 3, "B": 2}), 24, strategy="late-binding", costs={"a": cost(max_batch=1)})
    line.arrive(10.0, "A", serial="S1", due_s=11.2)
    other = line.arrive(10.0, "B", serial="S2", due_s=11.5)
    second = line.arrive(10.0, "B", serial="S1", due_s=99.0)
    inspect(line, (10.0, "AAAA"))
    assert line.results[second].late is line.results[other].late is False
    assert runs(line).index("cpu0 run b x2") < 4


def test_an_absent_expert_is_loaded_for_who_is_due_before_others_run():
    """Memory for one: b takes the place of a, for which more images wait, as soon as its board is in a hurry."""
    line = line_of(board({"A": 9, "B": 1}), 14, strategy="late-binding")
    for tenth in range(100, 400, 2):
        line.arrive(tenth / 10, "A")
        line.arrive(tenth / 10, "A")
    lonely = line.arrive(10.5, "B", due_s=16.5)
    line.run()
    assert not line.results[lonely].late
    assert not late(line)


def test_a_board_that_cannot_be_done_is_told_at_once_and_gives_way():
    """Loading c takes 5 s, which S1 does not have; S2 is due later, and is not held up by it."""
    line = line_of(board({"A": 3, "B": 2, "C": 1}), 24, strategy="late-binding", costs={"c": cost(load_s=5.0)})
    line.arrive(10.0, "A", serial="S1", due_s=12.0)
    saved = line.arrive(10.0, "B", serial="S2", due_s=13.0)
    doomed = line.arrive(10.0, "C", serial="S1", due_s=12.0)
    line.run()
    assert late(line) == [(10.0, "late S1")]
    assert line.results[doomed].late
    assert not line.results[saved].late


def test_a_board_whose_images_are_too_many_is_told_before_the_first_is_late():
    """Each of 40 images could be done in 0.3 s; all of them take 6 s at least, and the board has 4."""
    line = line_of(board({"A": 1}), 14, strategy="late-binding")
    for _ in range(40):
        line.arrive(10.0, "A", serial="S1", due_s=14.0)
    line.run()
    ((when, _),) = late(line)
    assert when < 10.5
    assert any(result.late for result in line.results.values())


def test_a_board_is_told_when_time_runs_out_while_it_waits():
    """Nothing is wrong with S1 until the load of c, which it had time for at 10, fails once."""
    line = line_of(
        board({"A": 3, "C": 1}), 14, strategy="late-binding", costs={"c": cost(load_s=2.0)}, bad_loads={"c": 1}
    )
    line.arrive(10.0, "C", serial="S1", due_s=13.5)
    line.run()
    ((when, what),) = late(line)
    assert (when, what) == (12.0, "late S1")


def test_what_is_late_is_told_and_answered_foreseen_or_not_and_with_any_strategy():
    line = line_of(board({"A": 1}), 14, strategy="late-binding", findings={}, bad_stages=frozenset({(1, "a")}))
    first = line.arrive(10.0, "A", serial="S1", due_s=10.65)
    inspect(line, (10.0, "A"))
    assert [what for _, what in late(line)] == (["late S1"] if line.results[first].late else [])
    line = line_of(board({"A": 1}), 14, strategy="late-binding")
    gone = line.arrive(10.0, "A", serial="S1", due_s=9.0)
    line.run()
    assert late(line) == [(10.0, "late S1")]
    assert line.results[gone].late
    assert line.results[gone].error is None
    line = line_of(board({"A": 1}), 14, strategy="coserve")
    gone = line.arrive(10.0, "A", due_s=10.1)
    line.run()
    assert line.results[gone].late
    assert not late(line)


def test_one_miss_of_a_serial_that_goes_on_costs_its_later_images_nothing():
    """The line is full with B, due in a minute; an image of A comes now and then, the first too late."""
    late_images = {}
    for serials in ("one", "each"):
        line = line_of(
            board({"A": 1, "B": 1}),
            40,
            workspace=8,
            strategy="late-binding",
            costs=dict.fromkeys("ab", cost(base_s=0.1, load_s=0.1, max_batch=8)),
        )
        images = []
        for n in range(150):
            at_s = 0.09 * n
            line.arrive(at_s, "B", serial=f"B{n}", due_s=at_s + 60)
            if n % 10 == 5:
                serial = "LOT" if serials == "one" else f"L{n}"
                images.append(line.arrive(at_s, "A", serial=serial, due_s=at_s + (1.5 if n > 5 else -0.1)))
        line.run()
        late_images[serials] = [id for id in images if line.results[id].late]
    assert late_images["one"] == late_images["each"]
    assert len(late_images["one"]) < 4
