"""Board files: which is taken, what it says, and errors with file, line and what to do."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from texts import texts

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
    with pytest.raises(RulesError, match=r"'joint'.*none: REVIEW"):
        board.router.next(joint, says("joint", "none"))
    with pytest.raises(RulesError, match=r"^board.yaml:4: 'body'.*none: REVIEW"):
        board.check_detectors(["body", "joint"])
    board.check_detectors([])
    board.check_detectors(["rejects", "says"])


def test_a_component_overrides_its_experts_defaults_and_only_those_it_names(board):
    roots = [board.components[name].root for name in ("plain", "strict", "lenient")]
    assert [(root.min_score, root.shares["ok"]) for root in roots] == [(0.6, 0.9), (0.95, 0.9), (0.6, 0.5)]
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


def test_working_directory_variable_package_in_this_order_and_a_path_as_it_is(places, monkeypatch):
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
    with pytest.raises(RulesError, match="board"):
        rules.load(path)


def test_a_folder_of_photographs_leads_to_the_command_for_it_and_a_name_not_found_names_what_there_is(places):
    (places / "work" / "photos").mkdir()
    with pytest.raises(RulesError, match=r"coe-board new NAME --photos photos --run$"):
        rules.load("photos")
    write(places / "site" / "board_mainboard.yaml", "m")
    with pytest.raises(RulesError) as caught:
        rules.load("mainbord")
    assert all(
        word in str(caught.value) for word in ("'mainbord'", f"routing_rules, {places / 'site'}, ", "'mainboard'")
    )
    write(places / "site" / "line7.yaml", "l")
    with pytest.raises(RulesError, match=r"site/line7\.yaml"):
        rules.load("line7.yaml")


GOOD = """\
board: demo
experts:
  chip-resistor:
    kind: resnet18
    labels: [ok, missing, cracked]
    input: 96
  joint: {kind: yolov5n, labels: [joint, bridge], input: 160, reject: [bridge]}
components:
  R0402:
    count: 24
    inspect: chip-resistor
    min_score: 0.80
    shares: {ok: 0.9}
    then:
      ok: joint
      missing: NG
      cracked: [joint]
"""

THEN = "      ok: joint\n      missing: NG\n      cracked: [joint]\n"
CHANGES = [
    ("inspect: chip-resistor", "inspect: chip-resistr", 11, "chip-resistr|chip-resistor"),
    ("ok: joint", "ok: joiny", 15, "joiny|joint"),
    ("[joint]\n", "[joint, jiont]\n", 17, "jiont|joint"),
    ("cracked: [joint]", "cracked: [joint, joint]", 17, "joint"),
    ("missing: NG", "missing: ng", 16, "ng|did you mean 'NG'"),
    ("    input: 96", "    inptu: 96", 6, "inptu|experts.chip-resistor|input"),
    ("count: 24", "cuont: 24", 10, "cuont|components.R0402|count"),
    ("board: demo", "borad: demo", 1, "borad|board"),
    ("ok: joint", "ok: {inspct: joint}", 15, "inspct|components.R0402.then.ok|inspect"),
    ("    count: 24\n", "    count: 24\n    count: 25\n", 11, "count|line 10"),
    ("    count: 24\n", "    count: 24\n    inspect: joint\n  R0402:\n", 12, "R0402|line 9"),
    ("    inspect: chip-resistor\n", "", 9, "components.R0402.inspect"),
    ("    kind: resnet18\n", "", 3, "experts.chip-resistor.kind"),
    ("board: demo\n", "", 1, "board"),
    ("      missing: NG\n", "", 9, "missing|chip-resistor"),
    ("      ok: joint\n      missing: NG\n", "      ok: {inspect: joint}\n", 9, "missing|chip-resistor"),
    ("missing: NG", "mising: NG", 16, "mising|chip-resistor|missing"),
    ("shares: {ok: 0.9}", "shares: {okay: 0.9}", 13, "okay|chip-resistor|ok"),
    ("{ok: 0.9}", "{ok: 0.9, missing: 0.2}", 13, "chip-resistor|1.1"),
    ("{ok: 0.9}", "{ok: 0.5, missing: 0.2, cracked: 0.2}", 13, "chip-resistor|0.9"),
    ("reject: [bridge]", "reject: [brigde]", 7, "brigde|joint|bridge"),
    ("[ok, missing, cracked]", "[ok, missing, ok]", 5, "chip-resistor|ok"),
    ("[joint, bridge]", "[none, bridge]", 7, "joint|none"),
    ("  joint: {", "  OK: {", 7, "OK"),
    ("cracked: [joint]", "cracked: []", 17, "empty list"),
    ("cracked: [joint]", "cracked:", 17, "components.R0402.then.cracked' has no value"),
    ("min_score: 0.80", "min_score:", 12, "components.R0402.min_score' has no value"),
    ("    then:\n" + THEN, "    then:\n", 14, "R0402.then' has no value"),
    ("reject: [bridge]", "reject: ", 7, "joint.reject' has no value"),
    ("[ok, missing, cracked]", "[ok, null, cracked]", 5, "chip-resistor.labels.1' has no value|quote "),
    ("cracked: [joint]", "cracked: [joint, OK]", 17, "OK stands alone"),
    ("labels: [joint, bridge]", "labels: joint", 7, "experts.joint.labels|a list|'joint'"),
    ("min_score: 0.80", "min_score: '0,8'", 12, "R0402.min_score|a number|'0,8'"),
    ("components:\n", "components:\n  R1: joint\n", 9, "components.R1"),
    (GOOD, "- board\n- experts\n", 1, "write entries of the"),
    (GOOD, "board", 1, "write entries of the"),
    ("components:\n", "  polarity: {kind: k, labels: [a], input: 8, reject: [a]}\ncomponents:\n", 8, "polarity"),
    ("reject: [bridge]}", "reject: [bridge], then: {joint: joint}}", 7, "circle: joint -> joint"),
    ("reject: [bridge]}", "reject: [bridge], then: {joint: chip-resistor}}", 7, "resistor -> joint -> chip-resistor"),
    (
        "components:\n",
        "components:\n  U1:\n    inspect: joint\n"
        "    then: {joint: {inspect: chip-resistor, then: {ok: OK, missing: OK, cracked: OK}}}\n",
        3,
        "chip-resistor -> joint -> chip-resistor",
    ),
    ("count: 24", "count: 0", 8, "0"),
    ("ok: joint", "ok: *joint", 15, "*joint"),
    ("ok: joint", "ok: !!python/object/apply:os.system [id]", 15, "tag:yaml.org,2002:python/object/apply:os.system|!"),
    ("components:\n", "---\ncomponents:\n", 8, "another document"),
    ("    count: 24", "\tcount: 24", 10, "a tab"),
    ("{ok: 0.9}", "{ok: 0.9", 13, "bracket"),
    ("ok: joint", "[ok]: joint", 15, "key"),
    ("count: 24", "count: \0", 10, "#x0000"),
    ("count: 24", "count: nan", 10, "not 'nan'"),
    ("count: 24", "count: [1]", 10, "not ['1']"),
    ("min_score: 0.80", "min_score: 1.01", 12, "not '1.01'"),
    ("min_score: 0.80", "min_score: nan", 12, "not 'nan'"),
    ("min_score: 0.80", "min_scores: {ok: 1.01}", 12, "not '1.01'"),
    ("input: 96", "temperature: 0\n    input: 96", 6, "not '0'"),
    ("{ok: 0.9}", "{ok: 90}", 13, "not '90'"),
    ("input: 96", "input: 7", 6, "not '7'"),
    ("input: 96", "input: 0x40", 6, "not '0x40'"),
    ("input: 96", "input: 1:04", 6, "not '1:04'"),
    ("input: 96", "input: true", 6, "not 'true'"),
    ("count: 24", "count: 1:30", 10, "not '1:30'"),
    ("count: 24", "accepts: [tunred]", 10, "'tunred'|'turned'"),
    ("count: 24", "accepts: [scratch]", 10, "'scratch'|missing, turned"),
    ("count: 24", "polarity: maybe", 10, "polarity|yes or no"),
    ("[joint, bridge]", "[joint, !!binary b2s=]", 7, "tag"),
    ("[joint, bridge]", "[joint, '']", 7, "empty"),
    ("[joint, bridge]", '[joint, "b\\x1b"]', 7, "shown"),
    ("[joint, bridge]", "[joint, ? bridge]", 7, ""),
    ("components:\n", "<<: {A: b}\ncomponents:\n", 8, ""),
    ("labels: [joint, bridge]", "labels: []", 7, "joint.labels|1 or more"),
    *(
        ("inspect: chip-resistor", f"reference: {named}\n    inspect: chip-resistor", 11, words)
        for named, words in {
            **{"[]": "empty", "[x, y, x]": "x twice", "[x, given]": "stands alone"},
            **{'[x, "a b"]': "reference.1|'a b'", '"a b"': "reference", "../gold": "reference"},
        }.items()
    ),
    ("board: demo", "board: ../demo", 1, "board|'../demo' cannot be a name"),
    ("  R0402:", "  R 0402:", 9, "components|'R 0402' cannot be a name"),
]


@pytest.mark.parametrize(("old", "new", "line", "words"), CHANGES)
def test_a_wrong_file_is_refused_with_its_line_and_the_words_that_help(board_file, old, new, line, words):
    assert GOOD.count(old) == 1
    with pytest.raises(RulesError) as caught:
        rules.load(board_file(GOOD.replace(old, new)))
    assert str(caught.value).startswith(f"board.yaml:{line}: ")
    assert [word for word in words.split("|") if word not in str(caught.value)] == []


OF_TWO = "kind: k, labels: [ok, bad], input: 8"


@pytest.mark.parametrize(
    ("of_a", "of_b", "components", "circle"),
    [
        ("", "", "X: {inspect: a, then: {ok: b, bad: NG}}, Y: {inspect: b, then: {ok: a, bad: NG}}", "b -> a -> b"),
        (", then: {bad: a}", "", "X: {inspect: a}", "a -> a"),
        (", then: {ok: a}", "", "X: {inspect: a}", "a -> a"),
        ("", ", then: {ok: a}", "X: {inspect: a, then: {ok: b}}", "a -> b -> a"),
        (", then: {ok: [{inspect: b, then: {ok: a}}], bad: NG}", "", "X: {inspect: a}", "a -> b -> a"),
    ],
)
def test_a_circle_is_called_a_circle_also_where_it_leaves_labels_without_a_rule(of_a, of_b, components, circle):
    experts = f"a: {{{OF_TWO}{of_a}}}, b: {{{OF_TWO}{of_b}}}"
    with pytest.raises(RulesError, match=f"circle: {circle}(;|$)"):
        rules_from(f"{{board: x, experts: {{{experts}}}, components: {{{components}}}}}")


ALL_AT_ONCE = [
    ({"    input: 96": "    inptu: 96", "count: 24": "cuont: 24"}, "board.yaml:6: 'inptu'|board.yaml:10: 'cuont'"),
    ({"ok: joint": "okk: joint", "missing: NG": "mising: NG"}, "board.yaml:15: 'okk'|board.yaml:16: 'mising'"),
    ({"reject: [bridge]": "reject: [x]", "[ok, missing,": "[ok, ok,"}, "board.yaml:5: |board.yaml:7: 'x'"),
    (
        {"ok: joint": "ok: x", "components:\n": "components:\n  R1: {inspect: y}\n"},
        "board.yaml:9: 'y'|board.yaml:16: 'x'",
    ),
    (
        {
            "components:\n": "  p: {kind: k, labels: [a], input: 8, reject: [a]}\n"
            "  q: {kind: k, labels: [a], input: 8, reject: [a]}\ncomponents:\n"
        },
        "board.yaml:8: expert 'p'|board.yaml:9: expert 'q'",
    ),
    (
        {"min_score: 0.80": "min_score:", "    kind: resnet18": "    weights:\n    kind: resnet18"},
        "board.yaml:4: |board.yaml:13: ",
    ),
    (
        {"min_score: 0.80": "min_score: 1.5", "count: 24": "count: x", "    input: 96": "    inptu: 96"},
        "board.yaml:6: 'inptu'|board.yaml:10: |board.yaml:12: ",
    ),
    ({"missing: NG": "missing: {inspct: joint}"}, "board.yaml:16: 'inspct'"),
]


@pytest.mark.parametrize(("changes", "words"), ALL_AT_ONCE)
def test_all_faults_of_one_kind_are_told_at_once(board_file, changes, words):
    text = GOOD
    for old, new in changes.items():
        text = text.replace(old, new)
    with pytest.raises(RulesError) as caught:
        rules.load(board_file(text))
    assert [word for word in words.split("|") if word not in str(caught.value)] == []


def test_of_very_many_faults_the_first_are_looked_into(board_file, monkeypatch):
    assert rules.load(board_file(GOOD)).board == "demo"
    asked = []
    monkeypatch.setattr(rules, "did_you_mean", lambda word, known: asked.append(word) or "")
    words = ", ".join(f"x{number}: OK" for number in range(50))
    places = "".join(f"  R{number}: {{inspect: y{number}}}\n" for number in range(50))
    labels = GOOD.replace("ok: joint", words.replace(", ", "\n      "))
    for text, told in ((labels, "45 more"), (GOOD + places, "'y4'")):
        asked.clear()
        with pytest.raises(RulesError, match=told):
            rules.load(board_file(text))
        assert 0 < len(asked) < 10


def test_a_message_is_one_short_line_of_visible_characters_whatever_the_file_holds(board_file):
    for word in ("x" * 300_000, '"\\e[2J\\nboard.yaml:1: all is well"'):
        with pytest.raises(RulesError) as caught:
            rules.load(board_file(GOOD.replace("ok: joint", f"ok: {word}")))
        assert len(str(caught.value)) < 1100
        assert str(caught.value).isprintable()
        assert str(caught.value).startswith("board.yaml:15: ")


def test_more_steps_than_anyone_needs_are_refused(board_file):
    lines = ["board: b", "experts:"]
    lines += [f"  e{i}: {{kind: k, labels: [ok], input: 8, then: {{ok: e{i + 1}}}}}" for i in range(1500)]
    lines += ["  e1500: {kind: k, labels: [ok], input: 8, then: {ok: OK}}", "components: {R1: {inspect: e0}}"]
    with pytest.raises(RulesError, match=r"board.yaml:1: experts follow each other through hundreds of steps"):
        rules.load(board_file("\n".join(lines)))


# Whatever a file holds, it is read or refused; nothing else ever comes out


def load_or_complain(path, raw):
    path.write_bytes(raw)
    with suppress(RulesError):
        assert isinstance(rules.load(path), rules.Rules)


ODD_TEXT = st.one_of(texts(60), st.text(alphabet="ab:-[]{}!&*'\"#|>%@,? \t\n\r\0", max_size=60))


@given(st.one_of(st.binary(max_size=200), ODD_TEXT.map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_any_text_or_bytes_are_read_or_refused(tmp_path, raw):
    load_or_complain(tmp_path / "board.yaml", raw)


PIECES = ["", " ", "\t", "\0", "[", "{", "}", "*a", "&a ", "!!int ", "- ", ": ", "joint", "NG", "nan", "-1", "~", "\n"]
PIECES += ["'", "1e999"]


@given(
    st.lists(st.tuples(st.integers(0, len(GOOD)), st.integers(0, 12), st.sampled_from(PIECES)), min_size=1, max_size=4)
)
def test_a_good_file_with_random_damage_is_read_or_refused(tmp_path, damage):
    text = GOOD
    for at, removed, piece in damage:
        text = text[:at] + piece + text[at + removed :]
    load_or_complain(tmp_path / "board.yaml", text.encode())


@given(st.data())
def test_a_good_file_with_words_that_changed_places_is_read_or_refused(tmp_path, data):
    words = GOOD.split(" ")
    for _ in range(data.draw(st.integers(1, 3))):
        one, two = (data.draw(st.integers(0, len(words) - 1)) for _ in range(2))
        words[one], words[two] = words[two], words[one]
    load_or_complain(tmp_path / "board.yaml", " ".join(words).encode())
