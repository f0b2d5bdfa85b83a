"""The parts of a production board: families of component types, and the detectors that several families share.

Values and packages are those of everyday boards. `share` is a family's part of a board's types. The smaller `popular`,
the larger the counts of a family's types: chip parts by the hundred, connectors and large ICs once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True, slots=True)
class Family:
    """A family of similar component types.

    A type's name is prefix, package, `-` and value; its classifier is named `noun-package-value`. For a share `chained`
    of the types, all detectors of `then` must pass after the classifier's ok.
    """

    prefix: str
    noun: str
    packages: tuple[str, ...]
    values: tuple[str, ...]
    labels: tuple[str, ...]
    share: float
    popular: float
    then: tuple[str, ...] = ()
    chained: float = 0.0

    def types(self) -> list[tuple[str, str, str]]:
        """Return every type as (component, package, value)."""
        return [(f"{self.prefix}{p}-{v}", p, v) for p, v in product(self.packages, self.values)]


@dataclass(frozen=True, slots=True)
class Detector:
    """A detector expert that several types share; `reject` are the labels that make a component NG."""

    kind: str
    labels: tuple[str, ...]
    input_size: int
    reject: tuple[str, ...]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CHIP = _words("ok missing damaged tombstone")
POLAR = _words("ok missing damaged shifted")
IC = _words("ok missing damaged rotated")
BODY = _words("ok missing damaged shifted")
CONNECTOR = _words("ok missing damaged tilted")

OHMS = _words(
    "0R 1R 2R2 4R7 10R 22R 33R 47R 49R9 68R 100R 120R 150R 220R 330R 470R 680R 1K 1K2 1K5 2K2 3K3 4K7 5K1 6K8 10K 12K "
    "15K 22K 33K 47K 68K 100K 150K 220K 330K 470K 680K 1M 2M2 10M"
)
FARADS = _words(
    "4P7 10P 12P 15P 18P 22P 33P 47P 100P 220P 470P 1N 2N2 4N7 10N 22N 47N 100N 220N 470N 1U 2U2 4U7 10U 22U"
)

FAMILIES: tuple[Family, ...] = (
    Family("R", "resistor", _words("0201 0402 0603 0805 1206"), OHMS, CHIP, 30, 1.0, ("alignment-chip",), 0.04),
    Family("C", "capacitor", _words("0201 0402 0603 0805 1206"), FARADS, CHIP, 24, 0.9, ("alignment-chip",), 0.05),
    Family("RN", "resistor-array", _words("0402x4 0603x4"), OHMS[6:30], BODY, 3, 3.0, ("alignment-array",), 0.4),
    Family("FB", "ferrite", _words("0402 0603 0805"), _words("30R 60R 120R 220R 600R 1K"), CHIP, 3, 2.0),
    Family("L", "inductor", _words("2016 2520 3015 4020 5040 6045"), _words("R47 1U 2U2 4U7 10U 22U"), BODY, 5, 5.0),
    Family("CT-", "tantalum", _words("A B C D"), _words("4U7 10U 22U 47U"), POLAR, 3, 6.0, ("polarity-tantalum",), 1),
    Family("CE-", "electrolytic", _words("D5 D6 D8 D10"), _words("10U 22U 47U 100U"), POLAR, 3, 9.0,
           ("polarity-can",), 1),
    Family("LED-", "led", _words("0402 0603 0805 PLCC4"), _words("RED GRN YEL BLU"), POLAR, 3, 4.0,
           ("polarity-led",), 1),
    Family("D-", "diode", _words("SOD323 SOD123 SMA SMB SMC"), _words("1N4148 BAT54 SS14 SS34 TVS5 TVS12 Z3V3 Z5V1"),
           POLAR, 5, 4.0, ("polarity-diode",), 1),
    Family("Q-", "transistor", _words("SOT23 SOT323 SOT223 DPAK"), _words("NPN PNP NMOS PMOS BSS138 LDO33 LDO18"),
           IC, 5, 3.0, ("joints-sot",), 0.4),
    Family("U-SOIC", "soic", _words("8 14 16"), _words("EEPROM OPAMP RS485 CAN MUX COMP FLASH DRV"), IC, 3, 12.0,
           ("joints-soic", "pin1-small"), 1),
    Family("U-TSSOP", "tssop", _words("8 16 20 24"), _words("ADC DAC LEVEL BUF PWM MUX"), IC, 3, 12.0,
           ("joints-tssop", "pin1-small"), 1),
    Family("U-QFN", "qfn", _words("16 20 24 32 48"), _words("PMIC PHY BUCK USB CODEC"), IC, 3, 14.0,
           ("fillet-qfn", "pin1-large"), 0.6),
    Family("U-QFP", "qfp", _words("32 48 64 100 144"), _words("MCU DSP CPLD ETH"), IC, 2.5, 25.0,
           ("joints-qfp", "pin1-large"), 1),
    Family("U-BGA", "bga", _words("64 121 256 484"), _words("SOC FPGA DDR EMMC"), IC, 2, 25.0,
           ("outline-bga", "pin1-large"), 1),
    Family("U-DFN", "dfn", _words("6 8 10"), _words("LDO ESD LOAD GATE SENSE"), IC, 2.5, 10.0, ("fillet-dfn",), 0.5),
    Family("Y", "crystal", _words("2016 3225 5032 HC49"), _words("8M 12M 16M 24M 25M 32K"), BODY, 2.5, 16.0,
           ("alignment-can",), 0.4),
    Family("J-HDR", "header", _words("1x4 1x6 2x5 2x10 2x20"), _words("ST RA"), CONNECTOR, 1.5, 25.0, ("pins-tht",), 1),
    Family("J-FPC", "fpc-socket", _words("10 24 30 40"), _words("TOP BOT"), CONNECTOR, 1.2, 25.0, ("pins-fpc",), 1),
    Family("J-WTB", "wire-socket", _words("2 3 4 6 8"), _words("1MM25 2MM"), CONNECTOR, 1.5, 20.0, ("pins-wtb",), 1),
    Family("J-USB", "usb-socket", _words("C16 C24 MICRO"), _words("MID TOP"), CONNECTOR, 0.9, 30.0, ("shell-tabs",), 1),
    Family("F", "fuse", _words("0603 1206 1812"), _words("500MA 1A 2A 3A"), BODY, 1.5, 9.0),
    Family("SW-", "switch", _words("TACT4 TACT6 DIP4 SLIDE"), _words("H1 H2"), BODY, 1.5, 16.0),
    Family("K-", "relay", _words("SPDT DPDT"), _words("5V 12V 24V"), BODY, 1.0, 20.0),
    Family("SH", "shield", _words("16x16 20x12 28x20"), _words("FRAME LID"), BODY, 0.8, 28.0, ("shell-tabs",), 1),
    Family("TP-", "test-point", _words("1MM 1MM5 2MM"), _words("SMD LOOP"), _words("ok missing damaged"), 1.0, 3.0),
)  # fmt: skip

COMMON = frozenset(
    f"{p}-{v}" for p in ("0402", "0603") for v in _words("0R 22R 100R 1K 4K7 10K 100K 22P 100N 1U 4U7 10U")
)
"""Chip parts that nearly every board carries in large numbers."""

_ALIGN = (_words("terminal offset skewed"), _words("offset skewed"))
_POLAR = (_words("mark reversed"), _words("reversed"))
_JOINTS = (_words("joint bridge lifted insufficient"), _words("bridge lifted insufficient"))
_PINS = (_words("pin bent bridge unsoldered"), _words("bent bridge unsoldered"))

DETECTORS: dict[str, Detector] = {
    "alignment-chip": Detector("yolov5m", _ALIGN[0], 320, _ALIGN[1]),
    "alignment-array": Detector("yolov5m", _ALIGN[0], 320, _ALIGN[1]),
    "alignment-can": Detector("yolov5m", _ALIGN[0], 320, _ALIGN[1]),
    "polarity-tantalum": Detector("yolov5m", _POLAR[0], 320, _POLAR[1]),
    "polarity-can": Detector("yolov5m", _POLAR[0], 320, _POLAR[1]),
    "polarity-led": Detector("yolov5m", _POLAR[0], 320, _POLAR[1]),
    "polarity-diode": Detector("yolov5m", _POLAR[0], 320, _POLAR[1]),
    "pin1-small": Detector("yolov5m", _POLAR[0], 320, _POLAR[1]),
    "pin1-large": Detector("yolov5m", _POLAR[0], 480, _POLAR[1]),
    "joints-sot": Detector("yolov5m", _JOINTS[0], 320, _JOINTS[1]),
    "joints-soic": Detector("yolov5m", _JOINTS[0], 480, _JOINTS[1]),
    "joints-tssop": Detector("yolov5l", _JOINTS[0], 480, _JOINTS[1]),
    "joints-qfp": Detector("yolov5l", _JOINTS[0], 640, _JOINTS[1]),
    "fillet-qfn": Detector("yolov5l", _JOINTS[0], 640, _JOINTS[1]),
    "fillet-dfn": Detector("yolov5m", _JOINTS[0], 320, _JOINTS[1]),
    "outline-bga": Detector("yolov5l", _ALIGN[0], 640, _ALIGN[1]),
    "pins-tht": Detector("yolov5m", _PINS[0], 480, _PINS[1]),
    "pins-fpc": Detector("yolov5l", _PINS[0], 640, _PINS[1]),
    "pins-wtb": Detector("yolov5m", _PINS[0], 480, _PINS[1]),
    "shell-tabs": Detector("yolov5l", _PINS[0], 480, _PINS[1]),
}
