"""What CAD programs and placement machines call the columns of a placement file, and their words for sides and units.

All programs share one list: files are renamed, merged and half translated on their way. Sources: files that KiCad,
Altium Designer, EasyEDA, Eagle, Fusion 360, DipTrace, LibrePCB, Allegro, Proteus, pcb-rnd and OpenPnP write, and those
that board makers ask for.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from coe.not_fitted import FITTED, LEFT_OUT
from coe.placement.placement_file import FileForm, Side, Units


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """How a CAD program names what it writes.

    `columns` holds for each field (refdes, x, y, rotation, side, value, package, component) the names of its column,
    the best first, in any case and with any of "-_. " between their words; of the fields in `needs`, none may lack.
    Without `header` the columns stand in the order of `columns`, between spaces. `sides` are its words for the sides;
    without a column of sides the name of the file ends as `endings` says.
    """

    columns: Mapping[str, tuple[str, ...]]
    needs: tuple[str, ...] = ("refdes", "x", "y", "rotation")
    sides: Mapping[str, Side] = field(default_factory=dict)
    endings: Mapping[str, Side] = field(default_factory=dict)
    header: bool = True

    def with_form(self, form: FileForm) -> Vocabulary:
        """Return it with the columns and words that a person says of a file."""
        if not form.columns and not form.sides:
            return self
        columns: dict[str, tuple[str, ...]] = dict(self.columns)
        columns.update({field: (name,) for field, name in form.columns.items()})
        words = {word.casefold(): side for word, side in form.sides.items()}
        # Who names columns means a table that has a header.
        is_table = self.header or bool(form.columns)
        return replace(self, columns=columns, sides={**self.sides, **words}, header=is_table)


UNIT_BEHIND = r"(?:[\s_-]|,\s*)(mm|мм|[uµμ]m|mils?|inch|град)"
"""A unit behind the name of a column, as in X_mm."""


@lru_cache(maxsize=4096)
def plain(name: str) -> str:
    """Return the name of a column as it is compared: without case, accents, unit and signs between its words.

    Example: `plain("Center-X(mm)")` is "center x".
    """
    letters = "".join(sign for sign in unicodedata.normalize("NFKD", name) if not unicodedata.combining(sign))
    bare = re.sub(rf"\s*[(\[](?![xy][)\]])[^)\]]*[)\]]?|(?<=.){UNIT_BEHIND}$", "", letters.casefold())
    return " ".join(re.split(r"[\s_./:*#?-]+", bare)).strip()


def one_word(name: str) -> str:
    """Return the name of a column as one word: Mount Side and MountSide are one name."""
    return plain(name).replace(" ", "")


def _axis(letter: str) -> tuple[str, ...]:
    return tuple(form.replace("@", letter) for form in _AXES)


_AXES = (
    *(
        "pos@",
        "pos @",
        "position @",
        "position@",
        "@ position",
        "@ pos",
        "@pos",
        "center @",
        "centre @",
        "@ center",
        "center@",
    ),
    *("center(@)", "mid @", "mid@", "@ mid", "symbol @", "sym @", "centroid @", "@ centroid", "@ location"),
    *("location @", "@ loc", "loc @", "location@", "@ coord", "coord @", "@ coordinate", "coordinate @", "placement @"),
    *(
        "part @",
        "mnt @",
        "mount @",
        "@",
        "koordinate @",
        "@ koordinate",
        "coordonnée @",
        "coordenada @",
        "posición @",
        "posizione @",
    ),
    *("posição @", "coordinata @", "@坐标", "坐标@", "中心@", "@轴", "@座標", "座標@", "координата @", "pozycja @"),
    *("współrzędna @", "pozice @", "souřadnice @", "positie @", "@좌표", "поз @", "delt@", "ref @"),
)
"""The names of a coordinate's column, with @ for x or y."""
MIRRORED = ("mirror", "mirrored", "symmirror", "symbolmirror")
"""The columns that say of a part whether it lies on the bottom side."""
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "refdes": (
        *("refdes", "ref", "designator", "ref des", "reference designator", "reference", "ref designator", "part id"),
        *("placement id", "comp name", "explain", "ref nr", "bestückposition"),
        *("references", "designators", "component designator", "component name", "part name", "name", "id", "part"),
        *("reference designators", "ref designators"),
        *(
            "referenz",
            "bezeichner",
            "bauteil",
            "bauteilname",
            "refno",
            "référence",
            "repère",
            "referencia",
            "designador",
            "riferimento",
        ),
        *("位号", "标号", "元件位号", "部品番号", "リファレンス", "позиционное обозначение", "обозначение", "compname"),
        *("oznaczenie", "označení", "referentie", "부품번호", "поз обозначение", "referans", "部品記号", "回路記号"),
        *("обозн", "元件名称", "配置名", "bezeichnung", "位號"),
    ),
    "x": _axis("x"),
    "y": _axis("y"),
    "rotation": (
        *("rotation", "rot", "rotate", "angle", "orientation", "orient", "theta", "rotation angle", "part rotation"),
        *(
            "degrees",
            "sym rotate",
            "symbol rotate",
            "sym rotation",
            "symbol rotation",
            "drehung",
            "winkel",
            "drehwinkel",
            "rotación",
        ),
        *("ángulo", "rotazione", "angolo", "rotação", "ângulo", "旋转", "角度", "旋转角度", "回転", "回転角度", "угол"),
        *("поворот", "obrót", "kąt", "natočení", "otočení", "úhel", "rotatie", "draaiing", "hoek", "회전", "회전각도"),
        *("phi", "mnt r", "θ", "угол поворота", "açı", "orientierung", "ausrichtung", "각도", "旋轉", "旋轉角度", "r"),
    ),
    "side": (
        *("side", "layer", "tb", "top bottom", "board side", "placement side", "pcb side", "placed side", "t b"),
        *(
            "mount side",
            "mounting side",
            "component side",
            "seite",
            "lage",
            "bestückungsseite",
            "face",
            "côté",
            "lado",
            "cara",
            "lato",
        ),
        *("层", "面", "板层", "层面", "実装面", "сторона", "слой", "strona", "strana", "zijde", "면", *MIRRORED),
        *("couche", "warstwa", "vrstva", "katman", "面别", "层别", "bauteilseite", "層", "板層"),
    ),
    "value": (
        *("value", "val", "comment", "comp value", "part value", "part number", "device", "wert", "valeur", "valor"),
        *("valore", "值", "参数", "型号", "номинал", "part type", "wartość", "hodnota", "waarde", "값"),
        *("备注", "品名", "değer", "номин"),
    ),
    "package": (
        *("footprint", "package", "pattern", "decal", "part decal", "partdecal", "pcb decal", "symbol name"),
        *("package name", "footprint name", "pcb footprint", "comp package", "cell name", "geometry", "gehäuse"),
        *(
            "bauform",
            "boîtier",
            "empreinte",
            "huella",
            "encapsulado",
            "contenitore",
            "封装",
            "フットプリント",
            "корпус",
            "obudowa",
            "pouzdro",
            "behuizing",
            "패키지",
        ),
        *("name", "description"),
    ),
    "component": ("component",),
    "fitted": FITTED,
    "left_out": LEFT_OUT,
    "kind": ("type",),
    "unit": ("unit", "units", "einheit", "unité", "unidad", "单位", "単位"),
    "quantity": (
        *("quantity", "qty", "qnty", "anzahl", "menge", "quantité", "qté", "cantidad", "数量", "количество", "кол во"),
    ),
}
MIRRORS = {
    **dict.fromkeys(("", "no", "n", "false", "0", "top"), Side.TOP),
    **dict.fromkeys(("m", "yes", "y", "true", "1", "mirror", "mirrored", "bottom"), Side.BOTTOM),
}
_TOP = (
    *("top", "t", "toplayer", "top layer", "f.cu", "f", "front", "top side", "topside", "comp", "component side", "1"),
    *(
        "a",
        "side a",
        "a side",
        "oben",
        "dessus",
        "superior",
        "arriba",
        "sopra",
        "cara superior",
        "顶层",
        "頂層",
        "顶面",
        "正面",
    ),
    *("top copper", "copper top", "top view", "superiore", "верхняя", "верхний", "üst"),
    *(
        "верх",
        "上",
        "上面",
        "部品面",
        "表",
        "表面",
        "oberseite",
        "bestückungsseite",
        "górna",
        "góra",
        "horní",
        "boven",
        "bovenkant",
        "상면",
        "윗면",
    ),
)
_BOTTOM = (
    *("bottom", "b", "bottomlayer", "bottom layer", "b.cu", "back", "bot", "bottom side", "bottomside", "solder"),
    *("solder side", "2", "side b", "b side", "unten", "dessous", "inferior", "abajo", "sotto", "cara inferior"),
    *(
        "底层",
        "底層",
        "底面",
        "反面",
        "背面",
        "низ",
        "下",
        "下面",
        "裏",
        "裏面",
        "半田面",
        "unterseite",
        "lötseite",
        "dolna",
        "dół",
        "dolní",
        "spodní",
    ),
    *("bottom copper", "copper bottom", "inferiore", "нижняя", "нижний", "alt", "16"),
    *("onder", "onderkant", "하면", "아랫면"),
)
SIDES = {**dict.fromkeys(_TOP, Side.TOP), **dict.fromkeys(_BOTTOM, Side.BOTTOM)}
UNIT_WORDS = {
    **dict.fromkeys(("mm", "мм", "毫米", "millimeter", "millimeters", "millimetre", "millimetres", "metric"), Units.MM),
    **dict.fromkeys(("um", "µm", "μm", "micron", "microns", "micrometer", "micrometers"), Units.UM),
    **dict.fromkeys(("mil", "mils", "thou", "th"), Units.MIL),
    **dict.fromkeys(("in", "inch", "inches", '"', "\u2033", "''"), Units.INCH),
}
"""The words that files have for units."""
