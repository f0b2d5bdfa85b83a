"""Board files that are right: where they are found, and what becomes of them."""

import pytest

from coe.board import rules
from coe.core import Box, Finding, Verdict
from coe.errors import RulesError
from coe.testing import rules_from

HEAD = """
board: demo
experts:
  body: {kind: k, labels: [ok, missing], input: 64, reject: [missing]}
  joint: {kind: k, labels: [joint, bridge], input: 96, reject: [bridge], weights: shared/joint}
  polarity: {kind: k, labels: [mark, reversed], input: 64, reject: [reversed]}
"""


def says(expert, label, score=1.0):
    return Finding(expert, "fp32", label, score)


def test_an_expert_has_what_the_file_says_and_weights_of_its_board():
    board = rules_from(HEAD + "components: {R1: {inspect: body, then: {ok: [joint, polarity]}}}")
    body, joint = board.experts["body"], board.experts["joint"]
    assert (body.kind, body.labels, body.input_size) == ("k", ("ok", "missing"), 64)
    assert (body.weights, joint.weights) == ("demo/body", "shared/joint")
    assert (body.reject, board.board) == (frozenset({"missing"}), "demo")
    board = rules_from(
        "{board: b, experts: {e: {kind: k, labels: [no, 1e3, 0x10, ~x, 2024-01-01], input: 8, reject: [no],"
        " temperature: 1.5, ignore_under: {no: 0.4}}}, components: {R1: {inspect: e}}}"
    )
    expert = board.experts["e"]
    assert expert.labels == ("no", "1e3", "0x10", "~x", "2024-01-01"), "words, whatever YAML makes of them"
    assert (expert.temperature, expert.ignore_under) == (1.5, {"no": 0.4})


BOARD = """
board: b
experts:
  body: {kind: k, labels: [ok, missing], input: 64, reject: [missing]}
  joint: {kind: k, labels: [joint, bridge], input: 96, reject: [bridge]}
  polarity: {kind: k, labels: [mark, reversed], input: 64, reject: [reversed]}
  rejects: {kind: k, labels: [joint, bridge], input: 8, reject: [bridge], then: {none: REVIEW}}
  says: {kind: k, labels: [joint, bridge], input: 8, then: {joint: OK, bridge: NG, none: REVIEW}}
  bare: {kind: k, labels: [ok, bad], input: 8}
  own: {kind: k, labels: [ok, bad], input: 8, min_score: 0.6, shares: {ok: 0.9}, then: {ok: OK, bad: NG}}
  first: {kind: k, labels: [ok], input: 8, then: {ok: second}}
  second: {kind: k, labels: [ok], input: 8, min_score: 0.7, then: {ok: third}}
  third: {kind: k, labels: [ok], input: 8, then: {ok: REVIEW}}
  each: {kind: k, labels: [ok, bad, odd], input: 8, min_scores: {ok: 0.9, odd: 0.6}, then: {ok: OK, bad: NG, odd: NG}}
components:
  no-rule: {inspect: body, then: {missing: joint, ok: polarity}}
  nested: {inspect: body, then: {ok: {inspect: joint, min_score: 0.9, then: {bridge: REVIEW}}}}
  beside: {inspect: body, then: {ok: [joint, {inspect: polarity, then: {reversed: OK}}]}}
  rejects: {inspect: rejects, then: {joint: polarity}}
  says: {inspect: says, then: {joint: polarity}}
  threshold: {inspect: bare, min_score: 0.8, then: {ok: OK, bad: NG}}
  plain: {inspect: own}
  strict: {inspect: own, min_score: 0.95}
  lenient: {inspect: own, then: {ok: OK, bad: REVIEW}, shares: {ok: 0.5}}
  chain: {inspect: first}
  each: {inspect: each, min_score: 0.5, min_scores: {odd: 0.8}}
"""


@pytest.fixture(scope="module")
def board():
    return rules_from(BOARD)


@pytest.mark.parametrize(
    ("component", "seen", "outcome"),
    [
        # A label without a rule is NG if it is rejected, and OK otherwise.
        ("no-rule", "body:missing joint:bridge", "NG"),
        ("no-rule", "body:missing joint:joint", "OK"),
        # A step says of each label what its expert's entry says, unless it says otherwise.
        *[(name, f"{name}:joint", "polarity") for name in ("rejects", "says")],
        *[(name, f"{name}:bridge", "NG") for name in ("rejects", "says")],
        *[(name, f"{name}:none", "REVIEW") for name in ("rejects", "says")],
        # A score under the threshold means review, whatever the label.
        ("threshold", "bare:ok:0.79", "REVIEW"),
        ("threshold", "bare:ok:0.8", "OK"),
        ("threshold", "bare:ok:nan", "REVIEW"),
        ("threshold", "bare:bad:0.5", "REVIEW"),
        # A component overrides its expert's defaults, and only those that it names.
        ("strict", "own:bad", "NG"),
        ("lenient", "own:bad", "REVIEW"),
        # An expert that is named as a next step brings its own defaults.
        ("chain", "first:ok", "second"),
        ("chain", "first:ok second:ok:0.69", "REVIEW"),
        ("chain", "first:ok second:ok:0.7", "third"),
        # A nested step may differ from one place to the next.
        ("nested", "body:ok joint:bridge:0.95", "REVIEW"),
        ("beside", "body:ok", "joint polarity"),
        ("beside", "body:ok joint:bridge:0.1", "NG"),
        ("beside", "body:ok polarity:reversed", "OK"),
        # A label must reach its own score and that of all labels.
        ("each", "each:ok:0.89", "REVIEW"),
        ("each", "each:ok:0.9", "OK"),
        ("each", "each:bad:0.89", "NG"),
        ("each", "each:bad:0.49", "REVIEW"),
        ("each", "each:odd:0.7", "REVIEW"),
    ],
)
def test_what_follows_a_finding(board, component, seen, outcome):
    steps = [board.components[component].root]
    for words in seen.split():
        expert, label, *score = words.split(":")
        (step,) = [step for step in steps if step.expert == expert]
        decision = board.router.next(step, says(expert, label, *map(float, score)))
        steps = decision.steps
        assert (decision.verdict is None) == bool(steps)
    assert (decision.verdict or " ".join(step.expert for step in steps)) == outcome


def test_what_follows_nothing_is_never_assumed(board):
    (joint,) = board.router.next(board.components["no-rule"].root, says("body", "missing")).steps
    with pytest.raises(RulesError, match="expert 'joint' saw nothing, and no rule says what follows; write `none: REV"):
        board.router.next(joint, says("joint", "none"))
    with pytest.raises(RulesError) as caught:
        board.check_detectors(["body", "joint"])
    assert str(caught.value) == (
        "board.yaml:4: 'body' may see nothing, and not all of its steps say what follows then; add "
        "`then: {none: REVIEW}` here (or NG, or OK where a picture without any finding is good)"
    )
    board.check_detectors([])
    board.check_detectors(["rejects", "says"])


def test_a_component_overrides_its_experts_defaults_and_only_those_it_names(board):
    plain, strict, lenient = (board.components[name].root for name in ("plain", "strict", "lenient"))
    assert (plain.min_score, strict.min_score, lenient.min_score) == (0.6, 0.95, 0.6)
    assert (plain.shares["ok"], strict.shares["ok"], lenient.shares["ok"]) == (0.9, 0.9, 0.5)
    assert {("first", "second"), ("second", "third")} <= set(board.graph.digraph.edges)


@pytest.mark.parametrize("depth", [1, 2, 30, 120])
def test_a_chain_may_be_of_any_depth(depth):
    lines = ["board: b", "experts:"]
    lines += [f"  e{i}: {{kind: k, labels: [ok], input: 8, then: {{ok: e{i + 1}}}}}" for i in range(depth)]
    lines += [f"  e{depth}: {{kind: k, labels: [ok], input: 8, then: {{ok: OK}}}}", "components: {R1: {inspect: e0}}"]
    board = rules_from("\n".join(lines))
    step, seen = board.components["R1"].root, ["e0"]
    while (decision := board.router.next(step, says(step.expert, "ok"))).steps:
        (step,) = decision.steps
        seen.append(step.expert)
    assert decision.verdict is Verdict.OK
    assert seen == [f"e{i}" for i in range(depth + 1)]
    assert [board.router.order("R1")[f"e{i}"] for i in range(depth + 1)] == list(range(depth + 1))


def test_branches_that_meet_again_in_layers_do_not_grow_into_a_tree():
    lines = ["board: b", "experts:"]
    for layer in range(40):
        following = f"[l{layer + 1}, r{layer + 1}]" if layer < 39 else "OK"
        lines += [f"  {side}{layer}: {{kind: k, labels: [ok], input: 8, then: {{ok: {following}}}}}" for side in "lr"]
    board = rules_from("\n".join([*lines, "components: {R1: {inspect: l0}, R2: {inspect: r0}}"]))
    assert board.graph.digraph.number_of_edges() == 39 * 4
    assert board.graph.probability("l39") == pytest.approx(1.0)
    assert len(repr(board.components["R1"].root)) < 200


def test_the_boards_that_ship_are_read_and_the_digest_is_that_of_the_file(tmp_path):
    board = rules.load("A")
    assert (len(board.components), len(board.experts)) == (352, 372)
    assert board.digest == rules.load("board_a").digest
    text = HEAD + "components: {R1: {inspect: body, then: {ok: [joint, polarity]}}}"
    (path := tmp_path / "b.yaml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert rules.load(path).board == "demo", "a file may begin with a byte order mark"
    # The probabilities of the first experts of all components add up to 1: each image has one component.
    first = {component.root.expert for component in board.components.values()}
    assert sum(board.graph.probability(expert) for expert in first) == pytest.approx(1.0)


def test_of_labels_with_the_same_outcome_one_that_is_sure_is_enough():
    board = rules_from(
        "{board: b, experts: {e: {kind: k, labels: [a, b], input: 8, reject: [a, b], min_scores: {a: 0.9},"
        " then: {none: OK}}}, components: {R1: {inspect: e}}}"
    )
    root = board.components["R1"].root
    boxes = (Box("a", 0.8, (0, 0, 1, 1)), Box("b", 0.3, (0, 0, 1, 1)))
    assert board.router.next(root, Finding("e", "fp32", "a", 0.8, boxes)).verdict is Verdict.NG
    assert board.router.next(root, Finding("e", "fp32", "a", 0.8, boxes[:1])).verdict is Verdict.REVIEW


# Where a board file is looked for: the working directory, $COE_RULES, the installed package


FOUND = "{board: %s, experts: {e: {kind: k, labels: [ok], input: 8, then: {ok: OK}}}, components: {R1: {inspect: e}}}"


@pytest.fixture
def places(tmp_path, monkeypatch):
    (tmp_path / "work" / "routing_rules").mkdir(parents=True)
    (tmp_path / "site").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("COE_RULES", str(tmp_path / "site"))
    return tmp_path


def write(path, board):
    path.write_text(FOUND % board)


def test_working_directory_variable_package_in_this_order(places, monkeypatch):
    for name in ("a", "A", "board_a", "BOARD_A"):
        assert rules.find(name).name == "board_a.yaml"
    monkeypatch.setenv("COE_RULES", str(places / "nowhere"))
    assert rules.load("A").board == "board_a"
    monkeypatch.setenv("COE_RULES", str(places / "site"))
    assert rules.load("A").board == "board_a"
    write(places / "site" / "board_a.yaml", "from-site")
    assert rules.load("A").board == "from-site"
    write(places / "work" / "routing_rules" / "board_a.yaml", "from-work")
    assert rules.load("A").board == "from-work"


def test_a_path_is_taken_as_it_is_and_of_names_in_one_folder_the_plain_one(places):
    write(places / "site" / "board_x.yaml", "prefixed")
    assert rules.load("x").board == "prefixed"
    write(places / "site" / "x.yaml", "plain")
    assert rules.load("x").board == "plain"
    write(places / "mine.yml", "mine")
    assert rules.load(places / "mine.yml").board == "mine"
    assert rules.load(str(places / "mine.yml")).board == "mine"


@pytest.mark.parametrize("path", ["no/such.yaml", "work", "a\0b.yaml", "loop.yaml"])
def test_a_path_that_is_no_file_is_said_so(path, places):
    (places / "work" / "loop.yaml").symlink_to("loop.yaml")
    with pytest.raises(RulesError, match=r"no board file for|no such board file"):
        rules.load(path)


def test_a_folder_of_photographs_leads_to_the_command_that_makes_a_board_of_it(places):
    (places / "work" / "photos").mkdir()
    with pytest.raises(RulesError, match=r"coe-board new NAME --photos photos --run$"):
        rules.load("photos")


def test_a_name_that_is_not_found_names_the_folders_and_what_there_is(places):
    write(places / "site" / "board_mainboard.yaml", "m")
    with pytest.raises(RulesError) as caught:
        rules.load("mainbord")
    message = str(caught.value)
    assert message.startswith(f"no board file for 'mainbord' in routing_rules, {places / 'site'}, ")
    assert message.endswith("; did you mean 'mainboard'?")
    write(places / "site" / "line7.yaml", "l")
    with pytest.raises(RulesError, match=r"did you mean .*site/line7\.yaml"):
        rules.load("line7.yaml")
