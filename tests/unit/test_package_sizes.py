"""Package names tell sizes: width and height in mm with leads, at a rotation of 0 as KiCad's libraries lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from coe.placement.package_sizes import read_library, size_of

SIZES = {
    "R_0402_1005Metric": (1.0, 0.5),
    "Capacitor_SMD:C_0603_1608Metric_Pad1.08x0.95mm_HandSolder": (1.6, 0.8),
    "R0402": (1.0, 0.5),
    "LED0603-RD": (1.6, 0.8),
    "CAPC1608X55N": (1.6, 0.8),
    "CP_Elec_6.3x5.4": (6.6, 6.6),
    "SOIC-8_3.9x4.9mm_P1.27mm": (6.1, 4.9),
    "TSSOP-20_4.4x6.5mm_P0.65mm": (6.6, 6.5),
    "LQFP-48_7x7mm_P0.5mm": (9.2, 9.2),
    "QFN-32-1EP_5x5mm_P0.5mm_EP3.1x3.1mm": (5.0, 5.0),
    "Crystal_SMD_3225-4Pin_3.2x2.5mm": (3.2, 2.5),
    "SOIC127P600X175-8N": (6.0, 5.01),
    "QFP50P1200X1200X160-64N": (12.0, 12.0),
    "SOIC-8_L4.9-W3.9-P1.27-LS6.0-BL": (4.9, 6.0),
    "SMA_L4.3-W2.6-LS5.2-RD": (5.2, 2.6),
    "LQFP-48_L7.0-W7.0-P0.50-LS9.0-BL": (9.0, 9.0),
    "TO-252-2_L6.5-W6.1-P4.58-LS10.0-TL": (10.0, 6.5),
    "SOT-23-3_L2.9-W1.3-P1.90-LS2.4-BR": (2.9, 2.4),
    "TO-263-5_L10.2-W8.9-P1.70-TL": (15.9, 10.7),
    "CRYSTAL-SMD_4P-L3.2-W2.5-BL": (3.2, 2.5),
    "CAPC1608X87X35LL15T15": (1.6, 0.8),
    "SOT-23": (2.6, 3.0),
    "SOT23-5": (3.0, 3.1),
    "D_SOD-323_HandSoldering": (2.8, 1.5),
}


@pytest.mark.parametrize("package", SIZES)
def test_the_size_is_in_the_name(package: str) -> None:
    size = size_of(package)
    assert size is not None
    assert (size.width_mm, size.height_mm) == SIZES[package]


@pytest.mark.parametrize("package", ["", "PinHeader_1x04_P2.54mm_Vertical", "MountingHole_3.2mm_M3", "X1"])
def test_a_name_without_a_size_tells_none(package: str) -> None:
    assert size_of(package) is None


def test_a_library_of_the_user_comes_first(tmp_path: Path) -> None:
    (path := tmp_path / "package_sizes.yaml").write_text(
        "sizes:\n  - {package: PinHeader_1x04*, size: [2.6, 10.2]}\n  - {package: SOT-23, size: [2, 2]}\n"
    )
    library = read_library(path)
    header, transistor = size_of("PinHeader_1x04_P2.54mm_Vertical", library), size_of("SOT-23", library)
    assert header is not None
    assert transistor is not None
    assert ((header.width_mm, header.height_mm), transistor.width_mm) == ((2.6, 10.2), 2.0)
