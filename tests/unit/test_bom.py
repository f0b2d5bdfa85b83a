"""Bills of materials as programs write them, and what they say beside a placement file."""

import cProfile
from pathlib import Path

import pytest
from placed import parse_bom, parse_file, parse_placements

from coe.board.parts_list import Side
from coe.bring.parts import vocabulary
from coe.bring.parts.answers import Answers
from coe.bring.parts.bom import join, read_bom
from coe.bring.parts.converting import convert
from coe.bring.parts.placements import Placement
from coe.bring.parts.refdes import designators
from coe.errors import ConfigError
from coe.helpers.strict_yaml import word_lists


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("R1,R2", ["R1", "R2"]),
        ("R1-R4", ["R1", "R2", "R3", "R4"]),
        ("C1 C2;C3", ["C1", "C2", "C3"]),
        ("R1..R3, U7", ["R1", "R2", "R3", "U7"]),
        ("R8-10", ["R8", "R9", "R10"]),
        ("R08-R10", ["R08", "R09", "R10"]),
        ("S&H1, R1&R2", ["S&H1", "R1", "R2"]),
        ("R1~R3", ["R1", "R2", "R3"]),
        ("U1:4", ["U1:4"]),  # a gate
        ("R5-C9", ["R5-C9"]),  # no range
        ("J1-J1", ["J1-J1"]),
        ("TP_1, R1, R1", ["TP_1", "R1"]),
        ("R1 to R3 and R7", ["R1", "R2", "R3", "R7"]),
        ("R1 bis R2", ["R1", "R2"]),
        ("R1\uff0cR2\u3001R3", ["R1", "R2", "R3"]),
        ("R1/R2+R3 & R4", ["R1", "R2", "R3", "R4"]),
        ("V+, D1/ST", ["V+", "D1/ST"]),
        ("1/R1, 2/R1", ["1/R1", "2/R1"]),
        ("A1/R1", ["A1/R1"]),
        ("R1 TO R3", ["R1", "R2", "R3"]),
        ("R1 thru R3, C1 Through C2", ["R1", "R2", "R3", "C1", "C2"]),
        ("R1, ..., R3, C1\u2026C2", ["R1", "R2", "R3", "C1", "C2"]),
        ("R1 AND R2", ["R1", "R2"]),
        ("C1, 2,3", ["C1", "C2", "C3"]),
        ("C1\u30012;3", ["C1", "C2", "C3"]),
        ("C1-2,5-6", ["C1", "C2", "C5", "C6"]),
        ("R1-2,5", ["R1", "R2", "R5"]),
        ("1,2", ["1", "2"]),
        ("R1,R2 (2)", ["R1", "R2"]),
        ("R1-R2(2 pcs)", ["R1", "R2"]),
        ("U1(2)", ["U1(2)"]),  # a gate
    ],
)
def test_lists_of_designators(text, found):
    assert list(designators(text)) == found


BOMS = {
    "jlc": 'Comment,Designator,Footprint,LCSC\n10k,"R1,R2",R_0402,C1\n24C64,"U2",SOIC-8,C2\nDNP,R9,R_0402,\n',
    "kicad": (
        '"Reference","Qty","Value","DNP","Footprint"\n"R1-R2","2","10k","","R_0402"\n"U2","1","24C64","","SOIC-8"\n'
        '"R9","1","1k","Excluded from BOM","R_0402"\n'
    ),
    "eagle": (
        "Qty;Value;Device;Package;Parts;Fitted\n2;10k;R;R_0402;R1, R2;yes\n1;24C64;U;SOIC-8;U2;yes\n"
        "1;1k;R;R_0402;R9;Not Fitted\n"
    ),
    "text": (
        "Bill of materials of X\n\nDesignator\tValue\tFootprint\nR1 R2\t10k\tR_0402\nU2\t24C64\tSOIC-8\n"
        "R9\t1k DNP\tR_0402\n"
    ),
    "two tables": (
        "Individual\n\n#,Ref,Value,Footprint,Class\n,R1,10k,R_0402,SMD\n,U2,24C64,SOIC-8,SMD\n,R9,1k,R_0402,DNP\n\n"
        "Collated\n\n#,Ref,Value,Footprint,Class\n1,R1 R2,10k,R_0402,SMD\n2,U2,24C64,SOIC-8,SMD\n3,R9,1k,R_0402,DNP\n"
    ),
    "line breaks": 'Reference Designators,Value,Package\n"R1,\nR2",10k,R_0402\nU2,24C64,SOIC-8\nR9,do not populate,\n',
    "any column": "Item,Reference,Part,Package,Option\n1,R1 R2,10k,R_0402,\n2,U2,24C64,SOIC-8,\n3,R9,1k,R_0402,DNP\n",
    "2 languages": "Comment型号,Designator位号,封装Footprint,X\n10k,R1 R2,R_0402,\n24C64,U2,SOIC-8,\nDNP,R9,R_0402,\n",
    "chinese": "位号,型号,封装,备注\nR1 R2,10k,R_0402,\nU2,24C64,SOIC-8,\nR9,1k,R_0402,不贴\n",
    "unnamed": "Designator\tValue\tFootprint\t\nR1 R2\t10k\tR_0402\ta note\nU2\t24C64\tSOIC-8\t\nR9\t1k\t\tDNP\n",
    "orcad": (
        "Item\tQuantity\tReference\tPart\tFootprint\n___\n\n1\t2\tR1,\t10k\tR_0402\n\tR2\t\t\t\n"
        "2\t1\tU2\t24C64\tSOIC-8\n3\t1\tR9\t1k\tdo not install\n"
    ),
    "german": "Bezeichner;Wert;Gehäuse;Bestückt\nR1,R2;10k;R_0402;ja\nU2;24C64;SOIC-8;ja\nR9;1k;R_0402;nein\n",
    "headings": '"Reference\nDesignator","Part\nValue",Package\n"R1,R2",10k,R_0402\nU2,24C64,SOIC-8\nR9,DNP,\n',
    "rows in one cell": 'Comment,Designator,Package\n"10k,""R1,R2"",R_0402"\n"24C64,U2,SOIC-8"\n"DNP,R9,R_0402"\n',
    "location": "Location,MPN,Package,Is Fitted\nR1 R2,10k,R_0402,yes\nU2,24C64,SOIC-8,yes\nR9,1k,R_0402,no\n",
    "even": '#,Board Reference,Value,Package,,\n1,"R1,R2",10k,R_0402,,a note\n2,U2,24C64,SOIC-8,,\n3,R9,DNP,,,\n',
    "labels": (
        "Component,References,Value,Package\nResistor:,R1 R2,10k,R_0402\n2,U2,24C64,SOIC-8\n3,R9,DNP,R_0402\n"
        ",,,\nComponent Count:,102,,\nBoM Date:,1/13/2020,,\nBuilt by a friend,,,\n"
    ),
    "japanese": '品名,定数,パッケージ,回路No\n抵抗,10k,R_0402,"R1,R2"\nIC,24C64,SOIC-8,U2\n抵抗,DNP,R_0402,R9\n',
    "german, a plan": (
        "Nr;Benennung;Bauform;Position im Plan;Menge\n1;10k;R_0402;R1, R2;2\n2;24C64;SOIC-8;U2;1\n3;DNP;R_0402;R9;1\n"
        "4;Leiterplatte;;;1\n"
    ),
    "english": (
        'Nr,Circuit numbers,Model,Package\n1,"R1,R2",10k,R_0402\n2,U2,24C64,SOIC-8\n3,R9,DNP,R_0402\n4,--,Screw,M3\n'
        "5,n/a,Screw,M4\n"
    ),
    "kicad xml": (
        '<?xml version="1.0"?><export><components>'
        '<comp ref="R1"><value>10k</value><footprint>R:R_0402</footprint></comp>'
        '<comp ref="R2"><value>10k</value><footprint>R:R_0402</footprint></comp>'
        '<comp ref="U2"><value>24C64</value><footprint>SOIC-8</footprint><property name="Sheet" value="a"/></comp>'
        '<comp ref="R9"><value>1k</value><property name="dnp"/></comp></components></export>'
    ),
    "a note behind a row in quotes": (
        '"Reference","Value","Package"\n"R1,R2","10k","R_0402"\n"U2","24C64","SOIC-8","was 24C32, before"\n'
        '"R9","1k","R_0402","DNP"\n'
    ),
    "easyeda, an ic without a value": (
        "Comment,Designator,Footprint,Value,Manufacturer Part\n,R1 R2,R_0402,10k,RC0402\n24C64,U2,SOIC-8,,\n"
        "DNP,R9,R_0402,,\n"
    ),
}


@pytest.mark.parametrize("text", BOMS.values(), ids=BOMS)
def test_a_bom_names_values_packages_and_what_is_not_fitted(tmp_path, text):
    (tmp_path / "bom.csv").write_text(text)
    parts = read_bom(tmp_path / "bom.csv")
    fitted = {refdes: (part.value, part.package) for refdes, part in parts.items() if part.is_fitted}
    assert fitted == {"R1": ("10k", "R_0402"), "R2": ("10k", "R_0402"), "U2": ("24C64", "SOIC-8")}
    assert set(parts) - set(fitted) == {"R9"}


@pytest.mark.parametrize("name", ["Reference Designator", "Reference"])
def test_a_person_says_which_column_of_a_bom_names_the_parts(tmp_path, name):
    of_makers = ("C3763533", "RC0402-1K") if name == "Reference" else ("", "")
    rows = "".join(f"{one},{value},A{value}\n" for one, value in zip(of_makers, ("R1 R2", "U2"), strict=True))
    (tmp_path / "b.csv").write_text(f"{name},Position,Value\n{rows}", encoding="utf-8")
    (tmp_path / "p.csv").write_text("Ref,X (mm),Y (mm),Rot,Side\nR1,1,1,0,top\nU2,2,1,0,top\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"b\.csv: .*--bom-columns"):
        convert(tmp_path / "p.csv", tmp_path / "b.csv", Answers())
    said = Answers(bom_columns={"refdes": "Position"})
    made = convert(tmp_path / "p.csv", tmp_path / "b.csv", said)
    assert [place.value for place in made.places] == ["AR1 R2", "AU2"]


def test_a_bom_fills_what_a_placement_file_lacks_and_tells_where_they_differ(tmp_path):
    (tmp_path / "bom.csv").write_text("Designator,Value,Footprint,DNP\nR1,10k,R_0402,\nR3,1k,R_0402,x\nR4,2k,R_0402,\n")
    places = [Placement(name, 1, 2, 0, Side.TOP, package="own" if name == "R2" else "") for name in ("R1", "R2", "R3")]
    joined = join(places, read_bom(tmp_path / "bom.csv"))
    assert [(p.refdes, p.value, p.package) for p in joined.placements] == [("R1", "10k", "R_0402"), ("R2", "", "own")]
    assert (joined.not_fitted, joined.only_placed, joined.only_listed) == (("R3",), ("R2",), ("R4",))


def test_values_of_which_two_files_say_something_else_are_told():
    bom = parse_bom(Path("b.csv"), b"Designator,Value\nR1,22k\nR2,10K 1%\nC1,1 uF\nC2,\n")
    own = {"R1": "10k", "R2": "10k", "C1": "1uF", "C2": "1u"}
    joined = join([Placement(name, 1, 2, 0, Side.TOP, value=value) for name, value in own.items()], bom)
    assert {place.refdes: place.value for place in joined.placements} == own
    (told,) = joined.notes
    assert [word in told for word in ("R1", "10k", "22k", "R2", "C1", "C2")] == [True] * 3 + [False] * 3


@pytest.mark.parametrize(
    ("word", "is_fitted"),
    [
        *(("NO_STUFF", False), ("nicht montiert", False), ("nicht verbaut", False), ("ne pas monter", False)),
        *(("Non câblé", False), ("не устанавливается", False), ("не паять", False), ("Montage vertical", True)),
    ],
)
def test_words_that_leave_a_part_out(word, is_fitted):
    bom = parse_bom(Path("b.csv"), f"Designator,Value,Remark\nR1,10k,\nR2,10k,{word}\n".encode())
    assert [part.is_fitted for part in bom.values()] == [True, is_fitted]


def joined_with(bom, *refdes):
    """Return parts at one place, with a BOM."""
    return join([Placement(one, 1, 2, 0, Side.TOP) for one in refdes], parse_bom(Path("x.csv"), bom.encode()))


def test_a_name_with_a_slash_is_one_part_where_the_placement_file_has_it():
    bom = "Designator,Value,DNP\nR1/R2,10k,yes\nC1/C2,1u,\n"
    one = joined_with(bom, "R1/R2", "C1/C2")
    assert [(place.refdes, place.value) for place in one.placements] == [("C1/C2", "1u")]
    assert (one.not_fitted, one.only_placed, one.only_listed) == (("R1/R2",), (), ())
    two = joined_with(bom, "R1", "R2", "C1", "C2")
    assert [(place.refdes, place.value) for place in two.placements] == [("C1", "1u"), ("C2", "1u")]
    assert (two.not_fitted, two.only_placed, two.only_listed) == (("R1", "R2"), (), ())
    both = joined_with("Designator,Value\nR1/R2,10k\nR1,10k\n", "R1/R2", "R1")
    assert [place.value for place in both.placements] == ["10k", "10k"]


@pytest.mark.parametrize("boards", [("1", "2"), ("A1", "A2")])
def test_a_bom_of_a_panel_names_the_parts_of_each_board(boards):
    one, two = boards
    bom = f'Designator,Value\n"{one}/R1, {two}/R1",10k\n"{one}/R2 {two}/R2",1k\n'
    read = joined_with(bom, *(f"{board}/{part}" for board in boards for part in ("R1", "R2")))
    assert [place.value for place in read.placements] == ["10k", "1k", "10k", "1k"]
    assert (read.only_placed, read.only_listed) == ((), ())


def test_a_bom_of_one_board_counts_on_each_board_of_a_panel():
    parts = [f"Board_{board}-{part}" for board in "01" for part in ("R1", "R2", "R9", "U_MAIN")]
    rows = "R1/R2,10k,0402,\nR9,1k,0402,yes\nR7,1k,0402,\nU_MAIN,ESP32,,\nBoard_1-R1,2k,0402,\n"
    read = joined_with(f"Designator,Value,Package,DNP\n{rows}", *parts)
    assert [place.value for place in read.placements] == ["10k", "10k", "ESP32", "2k", "10k", "ESP32"]
    assert (read.not_fitted, read.only_placed) == (("Board_0-R9", "Board_1-R9"), ())
    assert read.only_listed == ("R7",)
    with pytest.raises(ConfigError, match="column DNP"):
        join(
            [Placement(one, 1, 2, 0, Side.TOP) for one in parts],
            parse_bom(Path("x.csv"), b"Designator,Value\nR1,NC\nR2,1k\nR9,1k\n", asks=False),
        )


def test_a_bom_of_one_board_answers_for_each_board_of_a_panel():
    places = "Ref,Value,X(mm),Y(mm),Rot,Side\n" + "".join(
        f"B{board}-R1,1k,1,1,0,top\nB{board}-R2,2k,2,1,0,top\nB{board}-R3,NC,3,1,0,top\n" for board in "12"
    )
    bom = parse_bom(Path("b.csv"), b"Designator,Value,DNP\nR1,1k,\nR3,3k,no\n")
    assert len(parse_file(Path("p.csv"), places.encode(), bom=bom).placements) == 6


def test_words_that_are_no_designators_may_differ():
    bom = parse_bom(Path("x.csv"), b"Designator,Value\nR1-R2,1k\nLabel 1,SN\nLabel 2,5 V\nWire,red\nWire,black\n")
    assert "R1" in bom
    bom = parse_bom(Path("x.csv"), b"Designator,Value,Comment,Package\nJ1,,the best,SMA\nJ1,,cheaper,SMA\n")
    assert bom["J1"].value == "the best"
    with pytest.raises(ConfigError, match="designator such as R1"):
        parse_bom(Path("x.csv"), b"Designator,Value\nPort,a\nPlug,b\nEbay,a\nEbay,b\n")


@pytest.mark.parametrize(("row", "is_told"), [("Sum:,USB,", True), ("Plug:,USB,SMD", False)])
def test_a_row_that_names_no_part_is_told(row, is_told):
    parts = parse_bom(Path("x.csv"), f"MPN,Designator,Package\nRC10K,R1,R_0402\n{row}\n".encode())
    assert (parts["R1"].value, "USB" in parts) == ("RC10K", not is_told)
    assert ["USB" in note for note in join((), parts).notes] == [True] * is_told


# The headings of KiCad's own BOM (Designator, Footprint, Quantity, Designation) as KiCad 5 and 6 translate them.
KICAD_BOMS = {
    "de": "Bezeichner,Footprint,Stückzahl,Bezeichnung",
    "es": "Identificador,Huella,Cantidad,Identificación",
    "fr": "Référence,Empreinte,Quantité,Désignation",
    "it": "Riferimento,Impronta,Quantità,Valore",
    "pl": "Oznaczenie,Footprint,Ilość,Oznaczenie",
    "ru": "Обозначение,Посад.место,Количество,Значение",
    "bg": "Елемент,Отпечатък,Количество,Обозначение",
    "ca": "Designador,Empremta,Quantitat,Designació",
    "cs": "Označení,Pouzdro,Množství,Označení",
    "el": "Ένδειξη,Αποτύπωμα,Ποσότητα,Προσδιορισμός",
    "fi": "Nimittäjä,Jalanjälki,Lukumäärä,Merkintä",
    "hu": "Jelölés,Alkatrészrajzolat,Mennyiség,Elnevezés",
    "ja": "指定子,フットプリント,数量,名称",
    "ko": "지정자,풋프린트,수량,지정",
    "nl": "Designator,Behuizing,Hoeveelheid,Orientatie",
    "pt": "Designador,Pacote,Quantidade,Designação",
    "sv": "Beteckning,Fotavtryck,Kvantitet,Beteckning",
    "tr": "Tasarımcı,Ayak izi,Miktar,Tasarım",
    "zh": "指示符,封装,数量,名称",
}


@pytest.mark.parametrize("language", KICAD_BOMS)
def test_a_bom_of_kicad_is_read_in_the_language_of_its_program(language):
    names = [f'"{name}"' for name in KICAD_BOMS[language].split(",")]
    rows = ('1;"R19,R17";"R_0805_2012Metric";2;"4.7k";;;', '2;"D1";"D_SOD-123";1;"1N4148";;;')
    bom = parse_bom(Path("b.csv"), "\n".join([f'"Id";{";".join(names)};"Supplier and ref";', *rows]).encode())
    found = {refdes: (part.value, part.package) for refdes, part in bom.items()}
    assert found == {**dict.fromkeys(("R19", "R17"), ("4.7k", "R_0805_2012Metric")), "D1": ("1N4148", "D_SOD-123")}
    assert not bom.notes


def test_a_word_for_a_value_is_taken_before_what_makers_call_a_part():
    words = word_lists(vocabulary.__file__)
    others = words["instead_of_value"]
    for value in words["columns"]["value"]:
        names = ",".join(("Ref", *others, value))
        cells = ",".join("b" * len(others))
        bom = parse_bom(Path("b.csv"), f"{names}\nR1,{cells},10k\n".encode())
        assert (value, bom["R1"].value) == (value, "10k")
        placed = parse_placements(Path("p.csv"), f"X,Y,Rot,Side,{names}\n1,2,0,top,R1,{cells},10k\n".encode(), "mm")
        assert (value, placed[0].value) == (value, "10k")


def test_it_is_said_which_column_of_a_bom_is_what():
    bom = parse_bom(Path("b.csv"), b"Cantidad;Valor;Device;Package;Parts\n2;22pF;C-USC0805;C0805;C1, C2\n")
    assert all(f"{field} is '{name}'" in bom.read_as for field, name in {"refdes": "Parts", "value": "Valor"}.items())
    assert bom.read_as.endswith("not read: Device")


REFUSED = {
    "empty": "",
    "no designators": "Value,Footprint\n10k,R\n",
    "no parts": "Designator,Value\n",
    "twice": "Designator,Value\nR1,1k\nR1,2k\n",
    "numbers of makers": "Part #,Description,Qty\n455-1568-1-ND,CONN,6\n160-1647-1-ND,LED BLUE,5\n",
    "a list in quotes that is not one cell": '"Value","Designator","Footprint"\n"10k","R1","R2","R_0402"\n',
    "no quotes": "Value,Designator,Footprint\n10k,R1,R2,R_0402\n",
    "no quotes, and nothing at the end": "Designator,Value,DNP\nR1,R2,10k,x\n",
    "no quotes, and no name at the end": "Designator,Value,LCSC\nR1-R3,R7,10k,\nC1,1u,\n",
    "a mark that moved": "Designator,Value,,\nR1,R7,10k,\nC1,1u,,\n",
    "xml": "<export><components></components></export>",
    "a date": "Designator,Value\nR1,1k\n10-Mar,2k\n",
    "a german date": "Designator,Value\nR1,1k\n10. Mrz,2k\n",
    "struck": "Designator,Value\nR1,1k\n~~R2~~,2k\n",
    "unclear": "Designator,Value,DNP\nR1,1k,perhaps\n",
    "a word behind designators": 'Designator,Value\n"R1, R2 DNP",10k\n',
    "words in brackets": 'Designator,Value\n"R1,R2 (do not populate)",10k\n',
    "a heading": "Item,Designator,Value\n1,R1,1k\nDo not populate:,,\n2,R9,2k\n",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_a_bom_that_cannot_be_used_is_refused_by_its_name(tmp_path, text):
    (tmp_path / "bom.csv").write_text(text)
    with pytest.raises(ConfigError, match=r"bom\.csv"):
        read_bom(tmp_path / "bom.csv")


def test_lines_below_the_header_of_a_bom_are_not_searched_for_another(tmp_path):
    calls = []
    for lines in (100, 300):
        raw = ("Designator,Value\n" + "".join(f"R{n},10k\n" for n in range(lines))).encode()
        with cProfile.Profile() as profile:
            assert len(parse_bom(tmp_path / "bom.csv", raw)) == lines
        calls.append(sum(entry.callcount for entry in profile.getstats()))
    assert calls[1] - calls[0] < 200 * 200, calls  # 59 a line; a search for a header takes 290 more


NOTES = ("omit", "entfällt", "n.m.", "non montato", "空贴", "不焊接", "不贴片", "not stuffed")
QUANTITIES = ("Qty", "Stk.", "Pcs", "Menge", "Count")
NC = "R1,1k\nSW1,NC\nJ1,NC\nTP1,NC\nU1,NC7SZ04\nC1,10uF NP\nC2,1n NP0\nC3,NP0\nR2,10 nA"  # of a switch, and of nets
LOADS = "R1,LDO no-load 1uA\nR2,No load switch\nR3,1k NO LOAD\nR4,1k (no load)"


@pytest.mark.parametrize(
    ("text", "fitted", "not_fitted"),
    [
        *((f"Designator,Value,Note\nR1,1k,not used twice\nR9,1k,{note}", "R1", "R9") for note in NOTES),
        *((f"{name},Designator,Value\n1,R1,1k\n0,R9,1k", "R1", "R9") for name in QUANTITIES),
        ('Designator,Value,Config\nR1,1k,1\nR2,1k,x\nR3,1k,DNF\nR4,1k,"DNF,lab"', "R1 R2", "R3 R4"),
        (f"Reference,Value\n{LOADS}", "R1 R2", "R3 R4"),
        (f"Designator,Value\n{NC}", "R1 SW1 J1 TP1 U1 C1 C2 C3 R2", ""),
        ("Designator,Value\nR1,NA\nR2,NA\nU1,NE555", "R1 R2 U1", ""),
        # Designators go on in the next row.
        ("Item\tReference\tPart\n1\tR1,\tDNP\n\tR2\t", "", "R1 R2"),
        ("Item\tReference\tPart\n1\tR1\tDNP\n\tR2\t", "R2", "R1"),
    ],
)
def test_words_quantities_and_values_tell_which_parts_are_fitted(text, fitted, not_fitted):
    read = parse_bom(Path("b.bom"), f"{text}\n".encode())
    assert [name for name, part in read.items() if part.is_fitted] == fitted.split()
    assert [name for name, part in read.items() if not part.is_fitted] == not_fitted.split()


def test_legends_totals_and_names_like_dates_are_read():
    text = "DNP = do not populate,,\nParts marked DNP are not fitted,,\n"
    text += "Total: 5,5,\nTotal 5 parts,,\nVersion: 1.0,,\nDate: 2024-01-31,,\n\u5408\u8ba1\uff1a5,,\n"
    text += "Con-12,1k,\nMARK-01,1k,\nUNIT1-T2,1k,\n* DNP = do not populate,,\n,,J. Smith\n"
    assert [*parse_bom(Path("b.csv"), f"Designator,Value,DNP\n{text}".encode())] == ["Con-12", "MARK-01", "UNIT1-T2"]


def test_short_lines_that_name_no_part_as_others_do_are_passed_over_and_told():
    rows = "Qty,Designator,Value,Package\n1,R1,1k,0402\n2,LED_A LED_B,red,0603\n,Rev: B2,,\n,Date,12.03.2024,\n"
    rows += ",2024-01-31,,\n,Prepared by,J. Smith,\n,Page 1 of P2,,\n,R7,,\n,ANT,DNP,\n,Board,PCB1,\n,,,3\n"
    bom = parse_bom(Path("b.csv"), rows.encode())
    assert [*bom] == ["R1", "LED_A", "LED_B", "R7", "ANT"]
    assert not bom["ANT"].is_fitted
    note, *_ = join((), bom).notes
    assert "Rev: B2" in note
    assert "3 more" in note


def test_a_short_line_counts_if_it_names_a_part():
    rows = "1,R1,1k,0402\n1,C1,1u,0402\n,U_MAIN,ESP32,\n,Rev: B2,,\n,Total,5,\n"
    read = joined_with(f"Qty,Designator,Value,Package\n{rows}", "R1", "C1", "U_MAIN", "B2")
    assert [place.value for place in read.placements] == ["1k", "1u", "ESP32", ""]
    assert read.only_placed == ("B2",)
    assert [("U_MAIN" in note, "Rev" in note) for note in read.notes] == [(False, True)]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("R1,1k\nR1,2k\nR1,3k\nR2 R3,1k\nR3,4k", ["2, 3, 4", "'R3'"]),
        ("10-Mar,1k\nR1,2k\n11-Mar,1k", ["10-Mar", "line 4"]),
        ("R1 DNP,1k\nR2,2k\nR3 DNP,1k", ["R1 DNP", "line 4"]),
        ("R1,1k,perhaps\nR2,1k,x\nR3,1k,later", ["csv:2: 'perhaps'", "4"]),
    ],
)
def test_all_lines_of_a_bom_with_one_fault_are_told_at_once(rows, told):
    with pytest.raises(ConfigError, match=".*".join(told)):
        parse_bom(Path("b.csv"), f"Designator,Value,DNP\n{rows}\n".encode())


@pytest.mark.parametrize("value", ["NC", "N.C.", "n.c.", "NP", "NA(10k)", "10k/NC", "10k(NC)", "NC 10k"])
def test_a_value_that_may_leave_a_part_out_is_asked_about_among_values(value):
    bom = f"Designator,Value,DNP\nR1,1k,\nR2,2k,\nR3,{value},"
    with pytest.raises(ConfigError, match=r"^b\.csv:4: .*column DNP"):
        parse_bom(Path("b.csv"), bom.encode())
    for said in ("no", "yes"):
        assert parse_bom(Path("b.csv"), f"{bom}{said}".encode())["R3"].is_fitted is (said == "no")
    places = f"Ref,Value,X(mm),Y(mm),Rot,Side\nR1,1k,1,1,0,top\nR2,2k,1,1,0,top\nR3,{value},1,1,0,top\n"
    with pytest.raises(ConfigError, match=r"p\.csv:4: .*column DNP"):
        parse_placements(Path("p.csv"), places.encode(), "")


@pytest.mark.parametrize(
    ("word", "said"), [("N.C.", "N.C."), ("n.c.", "N.C."), ("NC/10k", "NC/*"), ("NC (10k)", "NC*")]
)
@pytest.mark.parametrize("key", ["fitted", "not_fitted"])
def test_a_person_answers_once_for_all_files_what_a_word_says(word, said, key):
    form = Answers.model_validate({key: [said]})
    rows = [f"R1,1k,1,1,0,top\nR2,2k,1,2,0,top\nR5,5k,2,2,0,top\nR3,{word},1,3,0,top\n", "R4,NP,1,4,0,top\n"]
    places = f"Ref,Value,X(mm),Y(mm),Rot,Side\n{rows[0]}".encode()
    file = parse_file(Path("p.csv"), places, answers=form)
    assert (file.not_placed, "R3" in file.said) == (((), True) if key == "fitted" else (("R3",), False))
    bom = parse_bom(Path("b.csv"), f"Designator,Value\nR1,1k\nR2,2k\nR3,{word}\n".encode(), answers=form)
    assert bom["R3"].is_fitted is (key == "fitted")
    with pytest.raises(ConfigError, match=r":6: .*not_fitted: .*answers"):  # another word is asked about
        parse_file(Path("p.csv"), places + rows[1].encode(), answers=form)
    with pytest.raises(ConfigError, match=r":4: .*not_fitted"):
        parse_bom(Path("b.csv"), b"Designator,Value\nR1,1k\nR2,2k\nR4,NP\n", answers=form)


PLACES = "Ref,Value,X(mm),Y(mm),Rot,Side,DNP\nR1,1k,1,1,0,top,\nR2,2k,1,1,0,top,\nR3,{},1,1,0,top,{}\n"


@pytest.mark.parametrize(
    ("value", "dnp", "row", "not_fitted"),
    [
        ("NC", "", "R3,NC,x", ["R3"]),
        ("NC", "", "R3,NC,no", []),
        ("NC", "", "R3,1k,", []),  # a part to buy
        ("NC", "", "R4,1k,", None),  # which only lacks
        ("NC", "", "R3,NC,", None),
        ("1k", "no", "R3,NC,", []),
        ("1k", "", "R3,NC,", None),
        ("1k", "", "R9,NC,", []),  # of a part that is not placed
        ("1k", "x", "R3,NC,", ["R3"]),
        ("1k", "x", "R3,1k,", ["R3"]),
    ],
)
def test_each_of_two_files_may_say_what_the_other_leaves_open(value, dnp, row, not_fitted):
    bom = parse_bom(Path("b.csv"), f"Designator,Value,DNP\nR1,1k,\nR2,2k,\n{row}".encode(), asks=False)

    def fitted():
        file = parse_file(Path("p.csv"), PLACES.format(value, dnp).encode(), bom=bom)
        return join(file.placements, bom, said=file.said, not_placed=file.not_placed)

    if not_fitted is None:
        with pytest.raises(ConfigError, match=r"\b[pb]\.csv:4: 'NC'"):
            fitted()
        return
    joined = fitted()
    assert {"R1", "R2", "R3"} - {place.refdes for place in joined.placements} == {*not_fitted}
    assert any("R3" in note for note in joined.notes) == (dnp == "x" and row == "R3,1k,"), "the two disagree"
