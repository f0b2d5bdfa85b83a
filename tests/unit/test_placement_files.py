"""Placement files in the manner of real exports: the same two parts, whatever wrote them and in whatever language."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from placed import parse_bom, parse_file, parse_placements, read_file, read_placements, written

from coe.board.parts_list import Side
from coe.bring.parts.answers import Answers
from coe.bring.parts.converting import convert
from coe.errors import ConfigError

FILES = [
    ("column of units.csv", "", "Ref,X,Y,Rot,Side,Unit\nR1,12.7,-3.5,90,top,mm\nU2,30,4,315,bottom,mm\n"),
    ("column of units of symbols.csv", "mm", "Ref,X,Y,Rot,Side,Unit\nR1,12.7,-3.5,90,top,1\nU2,30,4,315,bottom,A\n"),
    ("inches in short.csv", "", "Ref,X (in.),Y (in.),Rot,Side\nR1,.5,-.137795,90,top\nU2,1.181102,.15748,315,bottom\n"),
    ("sprint layout.txt", "",
     "*Pick And Place List\n*Project=a\n*\n*Coordinates in mm, always center of component\n"
     "*No;Value;Package;X;Y;Rotation;Side;Name\n1;10k;R_0402;12.7;-3.5;90;Top;R1\n2;E;SO8;30;4;315;Bottom;U2\n"),
    ("pads.csv", "mm",
     "RefDes,PartType,PartDecal,Layer,PositionX,PositionY,Orient.,SMD\nR1,R,R_0402,Top,12.7,-3.5,90.0,Yes\n"
     "U2,E,SO8,Bottom,30,4,315,Yes\n"),
    ("target.csv", "mm",
     "Bauteilname;Wert;Gehäuse;Pos X;Pos Y;Drehwinkel;Bestückungsseite\nR1;10k;R;12,7;-3,5;90;Oben\n"
     "U2;E;SO8;30,0;4,0;315;Unten\n"),
    ("german.csv", "mm",
     "Referenz;Wert;Gehäuse;PosX;PosY;Drehung;Seite\nR1;10k;R_0402;12,7;-3,5;90;oben\nU2;E;SO8;30,0;4,0;315;unten\n"),
    ("french.csv", "mm",
     "Référence,Valeur,Boîtier,Coordonnée X,Coordonnée Y,Rotation,Face\nR1,10k,R,12.7,-3.5,90,dessus\n"
     "U2,E,SO8,30.0,4.0,315,dessous\n"),
    ("chinese.csv", "", "位号,封装,X坐标,Y坐标,层,旋转\nR1,R,12.7mm,-3.5mm,顶层,90\nU2,SO8,30mm,4mm,底层,315\n"),
    ("eagle ULP.csv", "mm", "Part,X,Y,Rotation,Side\nR1,12.70,-3.50,R90,Top\nU2,30.00,4.00,MR315,Bottom\n"),
    ("eagle part list.txt", "",
     "Partlist\n\nExported from board.brd\n\n"
     "Part     Value          Package      Library           Position (mm)         Orientation\n\n"
     "R1       10k            R0402        rcl               (12.7 -3.5)           R90\n"
     "U2                      SO08         memory            (30 4)                MR315\n"),
    ("proteus notes.csv", "",
     "LABCENTER PROTEUS PICK AND PLACE FILE\n=====\n\nFields: Part ID,Value,Package,Layer,Rotation,X,Y\n"
     "Units: Rotation - degrees, X, Y - thou\nNotes: The X, Y value is the centre of package as drawn.\n"
     '       The origin for these values is the Output Origin.\n\n"R1","10k","0402",TOP,90,500,-137.795\n'
     '"U2","E","SO8",BOTTOM,315,1181.102,157.480\n'),
    ("mentor.txt", "mm",
     "# Reference Part-Number Geometry  X          Y          Side   Rotation\n#\n"
     "R1          100-001     r0402     12.7       -3.5       1      90\n"
     "U2          200-001     so8       30.0       4.0        2      315\n"),
    ("yamaha-R.csv", "mm", "Step,Ref,X,Y,R,Layer\n1,R1,12.7,-3.5,90,Top\n2,U2,30,4,315,Bottom\n"),
    ("target.txt", "mm",
     "Name\tX\tY\tDrehung\tSeite\nR1\t12,7\t-3,5\t90\u00b0\tBestückungsseite\nU2\t30,0\t4,0\t315\u00b0\tLötseite\n"),
    ("thin spaces.csv", "um",
     "Ref;X;Y;Rot;Side\nR1;12\u202f700,0;-3'500,0;90;top\nU2;30\u00a0000,0;4\u2019000,0;315;bottom\n"),
    ("expedition.txt", "mm",
     "Component Name,Cell Name,X Location,Y Location,Rotation,Layer\nR1,R,12.7,-3.5,90,Top\nU2,S,30,4,315,Bottom\n"),
    ("zuken.txt", "mm",
     "Ref-Des;Mount Side;X-Coordinate;Y-Coordinate;Angle\nR1;Side A;12.7;-3.5;90\nU2;Side B;30.000;4.000;315\n"),
    ("brackets.csv", "", "Designator,Center(X),Center(Y),Rotation,Layer\nR1,12.7mm,-3.5mm,90,T\nU2,30mm,4mm,315,B\n"),
    ("thousands.csv", "mil",
     'Designator,Center-X,Center-Y,Layer,Rotation\nR1,500.000,-137.795,T,90\nU2,"1,181.102","157.480",B,315\n'),
    ("polish.csv", "mm", "Oznaczenie;X;Y;Obrót;Strona\nR1;12,7;-3,5;90;góra\nU2;30,0;4,0;315;dół\n"),
    ("czech.csv", "mm", "Označení;X;Y;Natočení;Strana\nR1;12,7;-3,5;90;horní\nU2;30,0;4,0;315;dolní\n"),
    ("dutch.csv", "mm", "Referentie;X;Y;Rotatie;Zijde\nR1;12,7;-3,5;90;boven\nU2;30,0;4,0;315;onder\n"),
    ("korean.csv", "mm", "부품번호,X좌표,Y좌표,회전,면\nR1,12.7,-3.5,90,상면\nU2,30,4,315,하면\n"),
    ("austrian.csv", "mm", "Bauteil;X;Y;Winkel;Lage\nR1;12,7;-3,5;90;Oberseite\nU2;30,0;4,0;315;Unterseite\n"),
    ("allegro of old.txt", "",
     "UUNITS = MICRONS\nR1                   12700.0        -3500.0       90    R_0402\n"
     "U2                   30000.0         4000.0      315  m SO 8\n"),
    ("a description of three lines.txt", "",
     "Designator Layer       Center-X(mm) Center-Y(mm) Rotation Description\n"
     'R1         TopLayer    12.7         -3.5         90       "Relay 5\n\nchangeover 12 30 40\n\nby me"\n'
     'U2         BottomLayer 30.0         4.0          315      "x"\n'),
    ("wide brackets.csv", "",
     "单位：mm\n位号,X坐标（mm）,Y坐标（mm）,旋转角度（度）,层\nR1,12.7,-3.5,90,顶层\nU2,30,4,315,底层\n"),
    ("lost accents.csv", "mm", "Repere;X;Y;Angle;Cote\nR1;12,7;-3,5;90;dessus\nU2;30,0;4,0;315;dessous\n"),
    ("sprint layout in russian.txt", "",
     "* Все координаты в\0\0\0\0мм\n*\n* №\tОбозн\tНомин\tПоз-X\tПоз-Y\tУгол\tКорпус\tСлой\n*\n"
     "1\tR1\t10k\t12.7\t-3.5\t90\t0805, a resistor with a long name in its column\tTop\n"
     "2\tU2\tE\t30\t4\t315\tSO8, and so has this one, as many have\tBottom\n"),
    ("pages.csv", "mm", "Ref,X,Y,Rot,Side\nR1,12.7,-3.5,90,top\n\nRef,X,Y,Rot,Side\nU2,30,4,315,bottom\n"),
    ("siplace.txt", "mm",
     "Ref.Nr\tX\tY\tPhi\tBauteil\tSeite\nR1\t12,7\t-3,5\t90,0\tRES\tOben\nU2\t30,0\t4,0\t315,0\tE\tUnten\n"),
    ("metric.csv", "", "Units: Metric\nRef,X,Y,Rot,Side\nR1,12.7,-3.5,90,top\nU2,30,4,315,bottom\n"),
    ("rows above.csv", "", "Einheit;mm\nRef;X;Y;Rot;Side\nR1;12,7;-3,5;90;top\nU2;30,0;4,0;315;bottom\n"),
    ("a column of sides by its words.csv", "mm",
     "comp,Ref,X,Y,Rot,Bestückt auf\ncomp,R1,12.7,-3.5,90,oben\ncomp,U2,30,4,315,unten\n"),
    ("totals and pages.csv", "mm",
     "Ref,X,Y,Rot,Side\nR1,12.7,-3.5,90,top\n\nBoard X  Page 2\nRef,X,Y,Rot,Side\nU2,30,4,315,bottom\nTotal,2,,,\n"
     "END\n"),
    ("totals and pages between spaces.txt", "mm",
     "Ref  X      Y      Rot  Side\nR1   12.7   -3.5   90   top\nU2   30     4      315  bottom\n\nTotal: 2 parts\n"),
    ("units below.csv", "",
     "Ref,X,Y,Rot,Side\n,[mil],[mil],deg,\nR1,500,-137.795,90,top\nU2,1181.102,157.48,315,bottom\n"),
    ("one place in two units.csv", "",
     "Ref,X (mil),Y (mil),X (mm),Y (mm),Rot,Side\nR1,500,-137.795,12.7,-3.5,90,top\n"
     "U2,1181.102,157.48,30,4,315,bottom\n"),
    ("two units below.csv", "",
     "Ref,X,Y,X,Y,Rot,Side\n,[mil],[mil],[mm],[mm],,\nR1,500,-137.795,12.7,-3.5,90,top\n"
     "U2,1181.102,157.48,30,4,315,bottom\n"),
    ("two units below.smt", "",
     "# COMPNAME     XPOS       YPOS      XPOS    YPOS   ROTATION  SIDE    FOOTPRINT\n"
     "#             [mill]     [mill]     [mm]    [mm]\n#=======\n"
     "  R1           500      -137.795    12.7    -3.5     90      top     R 0402\n"
     "  U2           1181.102  157.48     30      4        315     bottom  SOIC 8\n"),
    ("as text.csv", "mm", '="Ref",X,Y,Rot,Side\n="R1",="12.7",-3.5,90,="top"\n"=""U2""",30,4,315,bottom\n'),
    ("names in two rows.csv", "",
     "Designator,Location (mm),,Angle,Pad 1,,Side\n,X,Y,,X,Y,\nR1,12.7,-3.5,90,1,1,top\nU2,30,4,315,2,2,bottom\n"),
    ("names of groups.csv", "mm",
     ",Center,,Pin 1,,Angle,Side\nRef,X,Y,X,Y,,\nR1,12.7,-3.5,1,1,90,top\nU2,30,4,2,2,315,bottom\n"),
    ("names of two lines.csv", "mm",
     '"Reference\nDesignator",X,Y,"Rot.\n(deg)",Side\nR1,12.7,-3.5,90,top\nU2,30,4,315,bottom\n'),
    ("rows in one cell.csv", "mm",
     'Ref,X,Y,Rot,Side,Val\n"R1,12.7,-3.5,90,top,""10k, 1%""";;\n"U2,30,4,315,bottom,E";;\n'),
    ("macrofab.xyrs", "mil",
     "R1\t500.0\t-137.795\t90\t1\t1\t61\t25\t10k\tR\t1\tRC0402\nU2\t1181.102\t157.48\t315\t2\t1\t60\t30\tE\tSO8\t1\n"),
    ("fabmaster.txt", "",
     "A!REFDES!COMP_VALUE!SYM_NAME!SYM_X!SYM_Y!SYM_ROTATE!SYM_MIRROR!\n"
     "J!a.brd!Mon Jan 1 10:00:00 2024!0.00!0.00!100.00!80.00!0.01!millimeters!B!2!UP TO DATE!\n"
     "S!R1!10k!R0402!12.70!-3.50!90.000!NO!\nS!U2!E!SO8!30.00!4.00!315.000!YES!\n"),
    ("hanwha.csv", "mm", "No,Ref ID,X,Y,R,Part,Side\n1,R1,12.7,-3.5,90,P1,T\n2,U2,30,4,315,P2,B\n"),
    ("location.csv", "mm", "Location,Part Number,X,Y,Angle,Side\nR1,AB1,12.7,-3.5,90,T\nU2,AB2,30,4,315,B\n"),
    ("qualified names.csv", "mm",
     "Component Ref,Board X,Board Y,Comp Rotation\u00b0,Placement Layer\nR1,12.7,-3.5,90,TOP SMD\n"
     "U2,30,4,315,SMT Bottom\n"),
    ("qualified and bare names.csv", "mm",
     "Part,Pad X,Part X,X,Y,Rot,Side\nR1,1,9,12.7,-3.5,90,CS\nU2,1,9,30,4,315,SS\n"),
    ("names of boards and of parts.csv", "mm",
     "Board Ref,Designator,X,Y,Rot,Part Angle,Comp Rotation,Board Layer,Side\nB1,R1,12.7,-3.5,90,1,1,bottom,top\n"
     "B2,U2,30,4,315,1,1,top,bottom\n"),
    ("names between spaces.txt", "mm", "Ref X Y Component Rot Side\nR1 12.7 -3.5 A 90 top\nU2 30 4 B 315 bottom\n"),
    ("is bottom.csv", "mm", "Ref,X,Y,Deg,Is Bottom\nR1,12.7,-3.5,90,False\nU2,30,4,315,True\n"),
    ("origins and places of DesignSpark.csv", "mm",
     "Component,Position X,Position Y,Place X,Place Y,Rotation,Side\nR1,1,1,12.7,-3.5,90,Top\n"
     "U2,1,1,30,4,315,Bottom\n"),
    ("notes behind tabs.xyrs", "mil",
     "# DESIGNATOR\tX_LOC\tY_LOC\tROTATION\tSIDE\tMPN\nR1\t500.0\t-137.795\t90\t1\tRC\t81361a19\n"
     "U2\t1181.102\t157.48\t315\t2\t\n"),
    ("incircuit.csv", "mm",
     ";;RefDes;Value;Orient.;X;Y;Seite;Class;;\n;;R1;1k;90;12.7;-3.5;Oben;SMD;;\n;;U2;E;315;30;4;Unten;SMD;;\n"),
    ("units behind names.csv", "", "Ref,X/mm,Y/mm,Rot/deg,Side\nR1,12.7,-3.5,90,top\nU2,30,4,315,bottom\n"),
    ("units without a sign.csv", "", "Ref,Xmm,Y{mm},Rot,Side\nR1,12.7,-3.5,90,top\nU2,30,4,315,bottom\n"),
    ("inches behind names.csv", "", "Ref,X in,Y in,Rot,Side\nR1,.5,-.137795,90,top\nU2,1.181102,.15748,315,bottom\n"),
    ("yamaha.csv", "mm",
     "NO.,Part Reference,Location X,Location Y,Location T,Side\n1,R1,12.7,-3.5,90,T\n2,U2,30,4,315,B\n"),
    ("hidden signs.csv", "mm", "\u200bRef,X,Y,Rot,Side\nR1\u200b,12.7,-3.5,90,top\nU2,30,4,315,\ufeffbottom\n"),
    ("minus.csv", "mm",
     "Designator,Mid X,Mid Y,Layer,Rotation\nR1,12.7,\u22123.5,Top,90\u00b0\nU2,30,4,Bottom,\u221245\u00b0\n"),
    ("empty and spaced values.pos", "",
     "## Unit = mm, Angle = deg.\n# Ref     Val         Package             PosX       PosY       Rot  Side\n"
     "R1                    R_0402           12.7000    -3.5000   90.0000  top\n"
     "U2        24 C 64     SOIC 8 wide      30.0000     4.0000  315.0000  bottom\n## End\n"),
    ("numbers as values.pos", "mm",
     "# Ref  Val   Package    PosX     PosY    Rot   Side\nR1     100   0402     12.7000  -3.5000  90.00  F.Cu\n"
     "U2     555   8        30.0000   4.0000  315.0  B.Cu\n"),
    ("librepcb.csv", "mm",
     "Designator,Value,Device,Package,Position X,Position Y,Rotation,Side,Type\n"
     "R1,10k,R-0402,R0402,12.7,-3.5,90.0,Top,THT+SMT\nU2,,X,SOIC,30,4,-45,Bottom,SMT\n"),
    ("pcb-rnd.xy", "",
     "# $Id$\n# PcbXY Version 1.0\n# X,Y in mm.  rotation in degrees.\n"
     '# RefDes, Description, Value, X, Y, rotation, top/bottom\n# ---\nR1,"R0402","10k",12.70,-3.50,90,top\n'
     'U2,"SO8","24C64",30.00,4.00,315,bottom\n'),
    ("proteus.csv", "",
     "LABCENTER PROTEUS PICK AND PLACE FILE\n=====\n\nComponent positions for X\n"
     "Fields: Part ID, Value, Package, Layer, Rotation, X, Y\nUnits: Rotation - degrees, X, Y - thou\n\n"
     '"R1","10k","0402",TOP,90,500,-137.795275\n"U2","24C64","SO8",BOTTOM,315,1181.102362,157.480315\n'),
    ("fusion-top.csv", "mm", "Name,X,Y,Angle,Value,Package\nR1,12.7,-3.5,90,10k,R0402\n"),
    ("spreadsheet.xlsx", "",
     [["Designator", "Mid X", "Mid Y", "Layer", "Rotation", "Comment"], ["R1", "12.7mm", "-3.5mm", "T", 90, None],
      ["U2", "30mm", "4mm", "B", 315, 'a "b"\nc']]),
    ("line breaks and commas.csv", "",
     'Designator,Comment,Layer,Center-X(mm),Center-Y(mm),Rotation\n"R1","10k,\n1%","TopLayer","12.7","-3.5","90"\n'
     '"U2","24C64, ""fast""","BottomLayer","30","4","315"\n'),
    ("inch marks amid.csv", "",
     '"Designator","Comment","Layer","Footprint","Center-X(mm)","Center-Y(mm)","Rotation"\n'
     '"R1","0.1" pitch, 2 rows","TopLayer","R","12.7","-3.5","90"\n"U2","x","BottomLayer","S","30","4","315"\n'),
    ("line break in the last column.csv", "",
     'Designator,Layer,X(mm),Y(mm),Rotation,Description\n"R1","TopLayer","12.7","-3.5","90","thin,\n\n5 %"\n'
     '"U2","BottomLayer","30","4","315","a ""b""\nc"\n'),
    ("quotes that open nothing.csv", "",
     'Designator,Comment,Layer,X(mm),Y(mm),Rotation\nR1,"10k,TopLayer,12.7,-3.5,90\nU2,"22k,BottomLayer,30,4,315\n'),
    ("quotes that open nothing at the end.csv", "",
     'Designator,Layer,X(mm),Y(mm),Rotation,Comment\nR1,TopLayer,12.7,-3.5,90,"10k\nU2,BottomLayer,30,4,315,"22k\n'),
    ("numbers in descriptions.txt", "",
     "Units used: mm\n\nDesignator Comment Layer       Footprint Center-X(mm) Center-Y(mm) Rotation Description\n"
     "R1         10 k    TopLayer              12.7000      -3.5000      90       100 Ohm\n"
     "U2                 BottomLayer 613 8     30.0000      4.0000       315      8 pin\n"),
    ("one value of two words, one empty.txt", "",
     "Designator Comment Layer       Footprint Center-X(mm) Center-Y(mm) Rotation Description\n"
     "R1         a b     TopLayer              12.7000      -3.5000      90       x\n"
     "U2         c t     BottomLayer           30.0000      4.0000       315      x\n"),
    ("numbers in comments.txt", "",
     "Designator Footprint    Mid X      Mid Y    Ref X    Ref Y    Pad X    Pad Y TB      Rotation Comment\n\n"
     "R1         0402        12.7mm     -3.5mm      1mm      1mm      1mm      1mm  T         90.00 100 16 V\n"
     "U2         SO 8          30mm        4mm      1mm      1mm      1mm      1mm  B        315.00\n"),
    ("single spaces.txt", "mm", "Ref X Y Rot Side\nR1 12.7 -3.5 90 top\nU2 30 4 315 bottom\n"),
    ("wide columns.txt", "mm",
     "Ref  X       Y     Rot  Mirror  Package\n---  ------  ----  ---  ------  -------\n"
     "R1   12.7    -3.5  90           R0402\nU2   30      4     315  M       SO8\n"),
    ("blank rows.csv", "",
     "Ref;PosX [mm];PosY [mm];Rot;Side;;\nR1;12,7;-3,5;90;top;;\n;;;;;;\nU2;30,0;4,0;315;bottom;;\n;;;;;;\n"),
    ("um behind numbers.txt", "",
     "Ref  X        Y       Rot  Layer\nR1   12700µm  -3500µm  90   T\nU2   30000µm  4000µm   315  B\n"),
    ("um behind names.csv", "", "Ref,X_um,Y_um,Rot,Layer\nR1,12700,-3500,90,T\nU2,30000,4000,315,B\n"),
    ("units behind names again.csv", "",
     "Ref,X_mm,Y_mm,Rot,Layer\nR1,12.7,-3.5,90,TOP_LAYER\nU2,30,4,315,Bottom-Side\n"),
    ("a unit in quotes.csv", "", '"Units used: mil"\n"Ref","X","Y","Rot","Side"\n"R1","500","-137.7953","90","top"\n'),
    ("three decimals.csv", "", "Ref;X;Y;Rot;Side\nR1;12,700mm;-3,500mm;90;top\nU2;30,000mm;4,000mm;315;bottom\n"),
    ("commas in angles.csv", "", 'Ref,X(mm),Y(mm),Rot,Side\nR1,12.7,-3.5,"90,0",top\nU2,30,4,"315,0",bottom\n'),
    ("designators behind values.txt", "",
     "Val    Package  Ref  X(mm)  Y(mm)  Rot  Side\n                R1   12.7   -3.5   90   top\n"
     "#1     8 pin    U2   30     4      315  bottom\n"),
    ("hashes in values.csv", "", "Val,Ref,X(mm),Y(mm),Rot,Side\n#1,R1,12.7,-3.5,90,top\n,U2,30,4,315,bottom\n"),
    ("angles.csv", "", "ref,x,y,rot,layer\nR1,12.7mm,-3.5mm,R90,Top Layer\nU2,30mm,4mm,-45\u00b0,Bottom Layer\n"),
    ("inches behind numbers.csv", "",
     'Designator,X,Y,Rotation,Layer\nR1,0.500",-0.1377953",90,Top\nU2,1.1811024",0.1574803",315,16\n'),
    ("no mark.txt", "",
     ("Ref\tX(mm)\tY(mm)\tRot\tSide\r\nR1\t12.7\t-3.5\t90\ttop\r\nU2\t30\t4\t315\tbottom\r\n").encode("utf-16-le")),
    ("units behind commas.csv", "",
     "Поз. обозначение;X, мм;Y, мм;Угол, град;Сторона\nR1;12,7;-3,5;90;Верх\nU2;30,0;4,0;315;Низ\n"),
    ("part names beside.txt", "",
     "Comp Name  Part Name  X(mm)  Y(mm)  Rot  Side\nR1         RES10K     12.7   -3.5   90   Top Copper\n"
     "U2         EEPROM     30     4      315  Bottom Copper\n"),
    ("phi.csv", "", "Placement ID,Component Name,X(mm),Y(mm),Phi,Side\nR1,R,12.7,-3.5,90,A\nU2,E,30,4,315,B\n"),
    ("not fitted.csv", "",
     "Ref,X(mm),Y(mm),Rot,Side,DNP,Variation\nR1,12.7,-3.5,90,top,,Fitted\nR2,1,1,0,top,DNP,\nR3,1,1,0,top,x,\n"
     "R4,1,1,0,top,,Not Fitted\nU2,30,4,315,bottom,,\n"),
    ("mirror.txt", "mm",
     "# refdes ! symbol_x ! symbol_y ! rotation ! mirror !\nR1 ! 12.7 ! -3.5 ! 90 ! !\nU2!30!4!315!YES!\n"),
]  # fmt: skip
"""What exports hold, with the unit that a person says: each of R1 and U2."""
TWO = {"R1": (12.7, -3.5, 90.0, Side.TOP), "U2": (30.0, 4.0, 315.0, Side.BOTTOM)}


@pytest.mark.parametrize(("name", "units", "content"), FILES, ids=[name for name, *_ in FILES])
def test_a_file_is_read_as_its_program_writes_it(name, units, content, tmp_path):
    places = read_placements(written(tmp_path / name, content), units=units)
    assert [place.refdes for place in places] == (["R1"] if name.startswith(("fusion", "a unit")) else list(TWO))
    for place in places:
        x, y, angle, side = TWO[place.refdes]
        assert (place.x_mm, place.y_mm) == (pytest.approx(x, abs=2e-3), pytest.approx(y, abs=2e-3))
        assert (place.rotation_deg, place.side) == (angle, side)


@pytest.mark.parametrize(
    ("encoding", "header"),
    [
        ("gb18030", "位号,X轴,Y轴,角度,层"),
        ("cp1250", "Označení,X,Y,Natočení,Strana"),
        ("cp1251", "Обозначение,X,Y,Угол,Сторона"),
        ("shift_jis", "部品番号,X座標,Y座標,回転,実装面"),
        ("cp949", "부품번호,X좌표,Y좌표,각도,면"),
        ("big5", "位號,X座標,Y座標,旋轉角度,面"),
        ("euc_jp", "部品番号,X座標,Y座標,角度,面"),
        ("koi8-r", "Обозначение,X,Y,Угол,Слой"),
        ("cp866", "Обозначение,X,Y,Угол,Слой"),
        ("utf-32", "Ref,X,Y,Rot,Side"),
    ],
)
def test_what_is_no_utf8_is_read_by_its_columns(encoding, header, tmp_path):
    path = tmp_path / "pnp.csv"
    path.write_bytes(f"{header}\nR1,12.7,-3.5,90,T\n".encode(encoding))
    (place,) = read_placements(path, units="mm")
    assert (place.refdes, place.x_mm, place.y_mm, place.side) == ("R1", 12.7, -3.5, Side.TOP)


GERBER = """%TF.FileFunction,Component,L4,Bot*%
%FSLAX46Y46*%
G04 Created by a program*
%MOIN*%
%TA.AperFunction,ComponentMain*%
%ADD10C,0.300000*%
%TD*%
%TA.AperFunction,ComponentPin*%
%ADD11C,0.100000*%
%TD*%
D10*
%TO.C,R1*%
%TO.CFtp,R_0402*%
%TO.CVal,"10k\\u03a9, 1\\u0025"*%
%TO.CRot,90*%
X0500000Y-137795D03*
D11*
%TO.P,R1,1*%
X0510000D03*
%TD*%
D10*%TO.C,U2*%%TO.CRot,-45*%
X1181102Y157480D03*
M02*
"""


def test_a_component_layer_of_gerber_is_a_placement_file():
    file = parse_file(Path("pnp_bottom.gbr"), GERBER.encode())
    told = [(round(one.x_mm, 2), round(one.y_mm, 2), one.rotation_deg, one.side) for one in file.placements]
    assert told == [(12.7, -3.5, 90, Side.BOTTOM), (30, 4, 315, Side.BOTTOM)]
    assert (file.placements[0].value, file.placements[0].package, file.units) == ("10k\u03a9, 1%", "R_0402", "inch")
    with pytest.raises(ConfigError, match="Gerber"):
        parse_file(Path("top.gbr"), b"%TF.FileFunction,Copper,L1,Top*%")
    for line in ("%TF.FileFunction,Component", "%FSLAX46Y46*%", "%MOIN*%"):
        with pytest.raises(ConfigError, match=line[1:5].removesuffix("IN")):
            parse_file(Path("pnp_bottom.gbr"), GERBER.replace(line, "G04 %").encode())


KICAD_8 = r"""(kicad_pcb
  # from a converter ")
  (layers (0 "F.Cu" signal) (4 "In1.Cu" power) (2 "B.Cu" signal) (9 "F.Adhes" user))
  (setup (aux_axis_origin 100 80))
  (footprint "Resistor_SMD:R_0402" (layer "F.Cu") (at 112.7 83.5 90) (attr smd)
    (property "Reference" "R1" (at 0 -1)) (property "Value" "10k 1\"; )" (at 0 1)))
  (footprint "Package_SO:SO8" (layer "B.Cu") (at 130 76 -45) (attr smd)
    (property "Reference" "U2") (property "Value" "E"))
  (footprint "Fiducial:Fiducial_1mm" (layer "F.Cu") (at 101 79) (attr smd exclude_from_pos_files)
    (property "Reference" "FID1"))
  (footprint "C" (layer "F.Cu") (at 101 79) (attr smd dnp) (property "Reference" "C9") (property "Value" "1u"))
  (footprint "C" (layer "F.Cu") (at 101 79) (property "dnp" "") (property "Reference" "C8"))
  (footprint "C" (layer "F.Cu") (at 101 79) (property "Populate" "no") (property "Reference" "C7"))
  (footprint "C" (layer "F.Cu") (at 101 79) (property "dnp" "yes") (property "Reference" "C6"))
  (footprint "Logo" (layer "F.Cu") (at 101 79) (attr exclude_from_pos_files) (property "Reference" "LOGO"))
)"""
KICAD_5 = """(kicad_pcb (version 4)
  (layers (0 Parts signal) (31 Back signal) (32 B.Adhes user))
  (module R:R_0402 locked (layer Parts) (at 12.7 3.5 90) (fp_text reference R1 (at 0 1)) (fp_text value 10k (at 0 1)))
  (module SO8 (layer Back) (at 30 -4 315) (fp_text reference U2 (at 0 1)) (fp_text value E (at 0 1)))
  (module Logo (layer Parts) (at 1 1) (attr virtual) (fp_text reference LOGO (at 0 1)) (fp_text value L (at 0 1)))
)"""


@pytest.mark.parametrize(
    ("text", "more", "left_out"), [(KICAD_8, ["FID1"], ("C9", "C8", "C7", "C6")), (KICAD_5, [], ())]
)
def test_a_board_of_kicad_is_a_placement_file(text, more, left_out):
    file = parse_file(Path("b.kicad_pcb"), text.encode())
    told = [(place.refdes, place.x_mm, place.y_mm, place.rotation_deg, place.side) for place in file.placements]
    assert told[:2] == [("R1", 12.7, -3.5, 90, Side.TOP), ("U2", 30, 4, 315, Side.BOTTOM)]
    assert ([place[0] for place in told[2:]], file.not_placed) == (more, left_out)
    assert (file.placements[0].package, file.placements[0].value[:3]) == ("R_0402", "10k")
    assert any("LOGO" in note for note in file.notes)
    with pytest.raises(ConfigError, match="brackets"):
        parse_file(Path("b.kicad_pcb"), text[:-1].encode())
    with pytest.raises(ConfigError, match="lacks a number"):
        parse_file(Path("b.kicad_pcb"), text.replace("(at 30", "(of 30").replace("(at 130", "(of 1").encode())


EAGLE_9 = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE eagle SYSTEM "eagle.dtd">
<eagle version="9.6.2"><drawing><board>
<libraries><library name="rcl" urn="urn:1"><packages>
<package name="R"><smd name="1" x="-0.5" y="1"/><smd name="2" x="1.5" y="1"/><pad name="3" x="9" y="9"/></package>
<package name="FRAME"/>
</packages></library></libraries>
<variantdefs><variantdef name="A"/><variantdef name="B" current="yes"/></variantdefs>
<elements>
<element name="R1" library="rcl" library_urn="urn:1" package="R" value="10k" x="13.7" y="-4" rot="R90">
<attribute name="MOUNT" value="SMD"/></element>
<element name="U2" library="rcl" library_urn="urn:1" package="R" value="E" x="29" y="3.5" rot="MR90">
<variant name="A" populate="no"/><variant name="B" populate="yes" value="F"/></element>
<element name="C8" library="rcl" library_urn="urn:1" package="R" value="1u" x="1" y="1" populate="no"/>
<element name="C9" library="rcl" library_urn="urn:1" package="R" value="1u" x="1" y="1">
<attribute name="POPULATE" value="0"/></element>
<element name="C7" library="rcl" library_urn="urn:1" package="R" value="1u" x="1" y="1">
<attribute name="DNP" value="yes"/></element>
<element name="U$1" library="rcl" library_urn="urn:1" package="FRAME" value="" x="1" y="1"/>
</elements></board></drawing></eagle>"""


def test_a_board_of_eagle_is_a_placement_file():
    file = parse_file(Path("b.brd"), EAGLE_9.encode())
    told = [(place.refdes, place.x_mm, place.y_mm, place.rotation_deg, place.side) for place in file.placements]
    assert told == [("R1", 12.7, -3.5, 90, Side.TOP), ("U2", 30, 4, 90, Side.BOTTOM)]
    assert ([place.value for place in file.placements], file.not_placed) == (["10k", "F"], ("C8", "C9", "C7"))
    assert any("U$1" in note for note in file.notes)
    for wrong in (EAGLE_9.replace('y="-4"', ""), EAGLE_9.replace(' SYSTEM "eagle.dtd"', " [<!ENTITY a 'b'>]")):
        with pytest.raises(ConfigError):
            parse_file(Path("b.brd"), wrong.encode())


IPC_2581 = """<?xml version = "1.0"?><IPC-2581 revision="C" xmlns="http://webstds.ipc.org/2581"><Bom name="b">
<BomItem><RefDes name="R1" packageRef="R" populate="true"/><RefDes name="C8" packageRef="C" populate="false"/>
<Characteristics><Textual textualCharacteristicName="Value" textualCharacteristicValue="10k"/></Characteristics>
</BomItem></Bom><Ecad name="e"><CadHeader units="INCH"/><CadData>
<Layer name="TOP" side="TOP"/><Layer name="IN" side="INTERNAL"/>
<Step name="panel"><StepRepeat stepRef="board" x="1" y="1" nx="2" ny="1"/>
<Component refDes="FID1" packageRef="F" layerRef="TOP"><Location x="0" y="0"/></Component></Step>
<Step name="board">
<Package name="R_1"><PickupPoint x="0.1" y="0"/><Pin number="1"><Location x="9" y="9"/></Pin></Package>
<Component refDes="R1" packageRef="R_1" part="P" layerRef="TOP">
<Xform rotation="90.0"/><Location x="0.5" y="1"/></Component>
<Component refDes="U2" packageRef="R_1" part="E" layerRef="IN"><NonstandardAttribute name="VALUE" value="F"/>
<Xform rotation="90.0" mirror="true"/><Location x="1" y="1"/></Component>
<Component refDes="U3" packageRef="Q" part="E" layerRef="IN"><Xform mirror="true"/><Location x="2" y="1"/></Component>
<Component refDes="U4" packageRef="R_1" part="E" layerRef="IN"><Xform mirror="true"/><Location x="2" y="1"/></Component>
<Component refDes="C8" packageRef="C" part="" layerRef="TOP"><Location x="2" y="2"/></Component>
</Step></CadData></Ecad></IPC-2581>"""


def test_components_of_ipc_2581_lie_where_their_packages_are_picked_up():
    file = parse_file(Path("b.xml"), IPC_2581.encode())
    told = [(place.refdes, place.value, round(place.x_mm, 2), round(place.y_mm, 2)) for place in file.placements]
    assert told == [
        ("R1", "10k", 12.7, 27.94),
        ("U2", "F", 25.4, 27.94),
        ("U3", "E", 50.8, 25.4),
        ("U4", "E", 48.26, 25.4),
    ]
    assert [place.side for place in file.placements] == [Side.TOP, Side.BOTTOM, Side.BOTTOM, Side.BOTTOM]
    assert (file.placements[0].package, file.placements[0].rotation_deg, file.not_placed) == ("R", 90, ("C8",))
    assert any("panel" in note for note in file.notes)
    same = IPC_2581.replace("?><IPC", "?><!-- a > b --><IPC").replace('mirror="true"', 'mirror="1"')
    for name in ("R1", "C8", "U2", "U3", "U4"):
        same = same.replace(f'"{name}"', f'"CMP:{name}"')  # as KiCad 9 writes
    of_kicad = parse_file(Path("b.xml"), same.replace('packageRef="R"', 'packageRef="PKG:R"').encode())
    assert (of_kicad.placements, of_kicad.not_placed) == (file.placements, file.not_placed)


@pytest.mark.parametrize(
    ("known", "wrong", "told"),
    [
        ("?><IPC", "?><!DOCTYPE a [<!ENTITY b 'c'>]><IPC", "IPC-2581.*document type"),
        ("</Bom>", '<BomItem><RefDes name="R1" populate="false"/></BomItem></Bom>', "true / false"),
        ("<Ecad", f"{'<a/>' * 4_000_000}<Ecad", "4,000,000"),
        ('<Location x="0.5" y="1"/>', "", "R1"),
        ('<Location x="0.5" y="1"/>', '<Location y="1"/>', "R1"),
        ("INCH", "FOOT", "FOOT"),
        ('<StepRepeat stepRef="board" x="1" y="1" nx="2" ny="1"/>', "", "panel, board"),
        ("Component", "LayerFeature", "no components"),
    ],
)
def test_an_ipc_2581_file_that_cannot_be_used_is_one_sentence(known, wrong, told):
    with pytest.raises(ConfigError, match=told):
        parse_file(Path("b.xml"), IPC_2581.replace(known, wrong).encode())


@pytest.mark.parametrize(("board", "parts"), [(IPC_2581, {"R1": "10k", "U2": "F"}), (EAGLE_9, {"R1": "10k"})])
def test_a_board_is_a_bom_too_and_may_be_in_utf_16(board, parts):
    board = re.sub(r"<\?xml [^>]*\?>", '<?xml version="1.0" encoding="UTF-16"?>', board)
    of_board = parse_file(Path("b.xml"), board.encode("utf-16"))
    for encoding in ("utf-16", "utf-16-be"):
        bom = parse_bom(Path("b.xml"), board.encode(encoding))
        assert {name: bom[name].value for name in parts} == parts
        assert {name for name, part in bom.items() if part.is_fitted} == {one.refdes for one in of_board.placements}


def test_words_in_chinese_are_read_below_names_in_english():
    text = "Ref,X,Y,Rot,Side,Note\nR1,12.7,-3.5,90,T,贴片\nR9,1,2,0,T,不贴\n"
    file = parse_file(Path("a.csv"), text.encode("gb18030"), "mm")
    assert ([place.refdes for place in file.placements], file.not_placed) == (["R1"], ("R9",))
    text = "Ref,X,Y,Rot,Side,Gr\u00f6\u00dfe\nR1,12.7,-3.5,90,T,\u00b0C\n"
    assert parse_file(Path("a.csv"), text.encode("cp1252"), "mm").unused == ("Gr\u00f6\u00dfe",)


PLACE = (
    '<placement id="{}" side="Top" part-id="R" type="{}" enabled="{}"><location units="Millimeters" x="{}" y="2"/>'
    "</placement>"
)
PLACES = (("R1", "Placement", "true", 1), ("R9", "Placement", "false", 2), ("F1", "Fiducial", "true", 3))
BOARD_XML = (
    f"<openpnp-board><placements>{''.join(PLACE.format(*place) for place in PLACES)}</placements></openpnp-board>"
)


def test_what_a_machine_does_not_place_is_no_part_to_inspect(tmp_path):
    file = read_file(written(tmp_path / "board.xml", BOARD_XML))
    assert (file.not_placed, [place.refdes for place in file.placements]) == (("R9",), ["R1", "F1"])
    assert [place.is_fiducial for place in file.placements] == [False, True]
    parts = convert(tmp_path / "board.xml", None, Answers()).parts
    assert [(part.refdes, part.component) for part in parts] == [("R1", "R"), ("F1", "")]
    table = "Designator,X,Y,Rotation,Side,Populate,Type\nR1,1,2,0,1,1,SMT\nR2,1,2,0,1,0,SMT\nF1,3,2,0,1,1,Fiducial\n"
    file = read_file(written(tmp_path / "a.csv", table), units="mm")
    assert (file.not_placed, [place.is_fiducial for place in file.placements]) == (("R2",), [False, True])


@pytest.mark.parametrize(
    ("column", "there", "absent"),
    [
        *(
            ("Skip", "No", "Yes"),
            ("Skip", "0", "1"),
            ("Exec", "Exec", "Skip"),
            ("Fitted?", "Y", "N"),
            ("DNS", "", "DNS"),
        ),
        *(("Do Not Fit?", "N", "Y"), ("DNP", "-", "\u2713"), ("NoMount", "", "NoMount"), ("Class", "SMD", "DNP")),
        *(("Value", "10k", "10k (DNI)"), ("Status", "Placed", "Not Placed"), ("DNP", "no", "nm")),
        *(("DNP", "0.0", "1.0"), ("DNP", "Installed", "T"), ("Skip", "Execute", "Skip"), ("Fitted", "x", "unmounted")),
        *(
            ("Fitted", "F", "NF"),
            ("Populate", "p", "NP"),
            ("DNP", "F", "T"),
            ("Populate", "y", "DNS"),
            ("DNP", "~", "NP"),
        ),
        *(("Qty", "1", "0 pcs"), ("Mounted", "SMD", "NP"), ("Place", "yes", "no"), ("Is Fitted", "yes", "no")),
    ],
)
def test_a_row_leaves_its_part_out_by_a_column_or_by_a_word(column, there, absent):
    text = f"Ref,X,Y,Rot,Side,{column}\nR1,1,2,0,top,{there}\nR9,3,4,0,top,{absent}\n"
    file = parse_file(Path("a.csv"), text.encode(), "mm")
    assert ([place.refdes for place in file.placements], file.not_placed) == (["R1"], ("R9",))


@pytest.mark.parametrize(
    ("column", "words", "asked", "notes"),
    [
        ("Fitted", ("yes", "maybe", "no"), "3", 0),
        ("Fitted", ("maybe", "", "later"), "2: .*also line 4", 0),
        ("Fitted", ("1", "2", "p"), "", 0),  # how many, and as "populate" begins
        ("Fitted", ("Yes.", "", "j"), "", 1),
        ("Fitted", ("Yes.", "", "n"), "", 0),
        ("Mount", ("SMD", "THT", "DNP"), "", 1),  # how, and not whether
        ("Mount", ("SMD", "no", ""), "", 1),
        ("Place", ("A3", "", ""), "", 1),
        ("Mount", ("SMD", "NC", ""), "3", 0),
        ("Mount", ("yes", "", "SMD"), "4", 0),
    ],
)
def test_words_that_do_not_say_whether_a_part_is_there_are_told_at_once(column, words, asked, notes):
    rows = "".join(f"R{at},1,{at},0,top,{word}\n" for at, word in enumerate(words))
    raw = f"Ref,X(mm),Y(mm),Rot,Side,{column}\n{rows}".encode()
    with pytest.raises(ConfigError, match=f":{asked}") if asked else nullcontext():
        assert len(parse_file(Path("a.csv"), raw).notes) == notes


def test_designators_that_occur_twice_are_named():
    raw = b"Ref,X(mm),Y(mm),Rot,Side\nR1,1,0,0,top\nR2,2,0,0,top\nR1,3,0,0,top\n"
    notes = parse_file(Path("a.csv"), raw).notes
    assert [("R1" in note, "R2" in note) for note in notes] == [(True, False)]
    nameless = b"Ref,X(mm),Y(mm),Rot,Side\n,1,0,0,top\n,2,0,0,top\nR1,3,0,0,top\n"
    assert parse_file(Path("a.csv"), nameless).notes == ()


def test_a_word_in_any_column_between_spaces_leaves_a_part_out_or_is_asked_about():
    head = "Designator Comment Layer    Center-X(mm) Center-Y(mm) Rotation Description\n"
    text = f"{head}R1         10k     TopLayer 1.5          2.5          0        usual\n"
    other = text.splitlines()[1].replace("R1", "R9").replace("usual", "DNP")
    file = parse_file(Path("a.txt"), (text + other).encode())
    assert ([place.refdes for place in file.placements], file.not_placed) == (["R1"], ("R9",))
    with pytest.raises(ConfigError, match="'NC'"):
        parse_file(Path("a.txt"), text.replace("usual", "NC").encode())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Ref,X(mm),Y(mm),Rot\nR1,1,2,0\nBottom side,,,\nR2,3,4,0\n", ":3: 'Bottom side'"),
        ("Ref,X(mm),Y(mm),Rot\nR1,1,2,0\nB.Cu,,,\nR2,3,4,0\n", ":3: 'B.Cu'"),
        ("Ref,X(mm),Y(mm),Rot,MountSide,Mount Side\nR1,1,2,0,top,bottom\n", "mountside.*twice"),
        ("Ref,X(mm),Y(mm),Rot,Side\nR1,1,2,0,top\nDo not populate:\nR2,3,4,0,top\n", ":3: 'Do not populate:'"),
        ("Ref,X(mm),Y(mm),Rot,Side\nR1,1,2,0,top\nR2,,,,\n", ":3: .* no x"),
        ("Value,Ref,X(mm),Y(mm),Rot,Side\n1k,R1,1,2,0,top\nLED,R2,,,,\n", ":3: .* no x"),
        ("Ref,X(mm),Y(mm),Rot,Side\nMCU,1,2,0,top\nAMP,,,,\n", ":3: .* no x"),
        ("Ref,X(mm),Y(mm),Rot,Side\nR1,1,2,0,top\nMCU,n/a,n/a,0,top\n", ":3: .*'n/a'"),
        ("Ref  X(mm)  Y(mm)  Rot  Side\nR1   1   2   0  top\nR2 X=1 Y=2\n", ":3: "),
        ("Ref,X(mm),Y(mm),Rot,Side\nR1,1,2,0,top\nRotation is clockwise\n", "clockwise"),
        ("Ref,X(um),Y(um),Rot,Side\nR1,12.700,2.000,0,top\nR2,30.000,4.000,0,top\n", "units"),
        ("Ref,X(mm),Y(mm),Rot,Side\nR1,0,0,0,top\nR2,0.0,0.0,90,top\n", "at 0, 0"),
        ("Ref,X(1e-4 mm),Y(1e-4 mm),Rot,Side\nR1,10000,20000,0,top\n", "'1e-4 mm'"),
        ("R1\t12.70\t-3.50\t90.00\t10k 1%\tR0402\n301\t1\t2\t0\tTP\tPAD\n", "--columns refdes,x,y"),
        ("Ref,X(mm),Y(mm),Rot,Flip\nR1,1,2,0,0\nR2,3,4,0,1\n", "column 'Flip'"),
        (re.sub(r'( [xy])="\d"', r'\1="0"', BOARD_XML), "at 0, 0"),
        ("<openpnp-panel><children><object file-name='b.board.xml'/></children></openpnp-panel>", "b.board"),
        (
            "<openpnp-job><board-locations><board-location board='b.board.xml'/></board-locations></openpnp-job>",
            "b.board",
        ),
        # Of two names that say the same, none is guessed; a column called Name may hold the designators.
        ("Ref,Board X(mm),Board Y(mm),Comp X(mm),Comp Y(mm),Rot\nR1,1,2,3,4,90\n", "header"),
        ("Ref,X(mm),Y(mm),Board Angle,Part Angle\nR1,1,2,3,90\n", ":1: .*rotation"),
        ("Component ID,Name,X(mm),Y(mm),Rot\nRES-10K,R1,1,2,90\nRES-20K,R2,3,4,90\n", "'Name'"),
        ("Ref    X(mm)  Y(mm)  Rot\nR1     1.0    2.0    90   x\n", ":2: "),
        ("Ref,X,Y,Rot,Side,Unit\nR1,10,20,90,top,mm\nR2,1000,2000,90,top,mil\n", "'mil'"),
        # Two numbers in a cell are no thousands, and one with a space as no other has may be two.
        *(
            (f"Ref,X(um),Y(um),Rot\nR1,{cell},2,0\n", "not a number")
            for cell in ("1.5 100", "1 23", "1234 567", "1 234 56")
        ),
        *((f"Ref,X(um),Y(um),Rot\nR1,{cells},0\n", "two") for cells in ("100 200,5", "1 200,1500")),
    ],
)
def test_what_may_be_a_part_or_say_something_of_parts_is_not_passed_over(text, told):
    with pytest.raises(ConfigError, match=told):
        parse_file(Path("a-top.csv"), text.encode())


CHARMHIGH = """FILE,a.dpv
Table,No.,ID,DeltX,DeltY,FeedRates,Note
Station,0,1,0,0,4,10k

Table,No.,ID,PHead,STNo.,DeltX,DeltY,Angle,Height,Skip,Speed,Explain,Note,Delay
EComponent,0,1,1,7,1,2,0,0.50,6,0,R1,10k,0
EComponent,0,1,1,7,3,4,90,0.50,6,0,R2,10k,0
EComponent,1,2,1,7,1,2,0,0.50,7,0,R9,10k,0

Table,No.,ID,offsetX,offsetY,Note
CalibPoint,0,1,3.14,12.66,Mark1
"""
"""Parts among other tables. The cell Skip is a sum of bits; the lowest skips, the others are of vision and vacuum."""
TWO_PARTS = [("R1", 1.0, Side.TOP), ("R2", 3.0, Side.TOP)]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Ref,X(mm),Y(mm),Rot\nR1,1,2,0\nBoard top  Page 2,,,\nR2,3,4,0\nTop: 2, bottom: 0\n", TWO_PARTS),
        ("Ref,X(mm),Y(mm),Rot\nR1,1,2,0\nR2,3,4,0\nDNP: 0\n", TWO_PARTS),
        ("Ref,X(mm),Y(mm),Rot,Feeder\nR1,1,2,0,front\nR2,3,4,0,back\n", TWO_PARTS),
        ("Ref RefX RefY Rot X(mm) Y(mm)\nR1  7    7    0   1     2\nR2  7    7    0   3     4\n", TWO_PARTS),
        (CHARMHIGH, TWO_PARTS),
        ("RefDes,SymX,SymY,SymRotate,SymMirror\nR1,1,2,0,1\n", [("R1", 1, Side.BOTTOM)]),
        ("# Ref     Val       PosX      PosY      Rot\n                    1.0       2.0       0.0\n"
         "R1        10k       3.0       4.0       0.0\n", [("", 1.0, Side.TOP), ("R1", 3.0, Side.TOP)]),
        ('Ref,X,Y,Layer,Rot,Val\n"R1","1mm","2mm","Top",90,"47u"\n"R2","3mm","4mm","Top",0,"10"\n', TWO_PARTS),
        *((f"# Coordinates {said}\nRef,X,Y,Rot,Side\nR1,1,2,90,top\n", TWO_PARTS[:1])
          for said in ("in this file are from a corner", "in the CAD system", "in in-house form")),
        # Thousands have spaces or apostrophes, and three digits before a comma.
        ("Ref,X(um),Y(um),Rot\nR1,3 234.5,-1 000 000,90\n", [("R1", 3.2345, Side.TOP)]),
        ("Ref,X(um),Y(um),Rot\nR1,3'234.5,-1'000'000,90\n", [("R1", 3.2345, Side.TOP)]),
        ("Ref X(um) Y(um) Rot\nR1 3'234.5 -1\u2019000\u2019000 90\n", [("R1", 3.2345, Side.TOP)]),
        ("Ref,X(um),Y(um),Rot\nR1,1 200,2 300,0\n", [("R1", 1.2, Side.TOP)]),
        ("Ref;X(mil);Y(mil);Rot\nR1;5052,953;137,795;90\n", [("R1", 128.345, Side.TOP)]),
    ],
)  # fmt: skip
def test_what_says_something_else_than_it_seems_is_read_as_it_is_meant(text, read):
    file = parse_file(Path("a-top.csv"), text.encode(), "" if re.search(r"\d?mm|\((um|mil)\)", text) else "mm")
    assert [(one.refdes, round(one.x_mm, 4), one.side) for one in file.placements] == read
    assert file.not_placed == (("R9",) if text == CHARMHIGH else ())


BLANKS = """\
Ref   X       Y      Rot    Side    Value      Package
R1    12.7    -3.5   90     top     10k 1%     R 0402
R2    12.7    -3.5   90     bottom  LM358      TO-92 (bent)
R3    12.7    -3.5   270.0  top                R 0402
R4    12.7    -3.5   90     top     MAX232 (TI) SO 8
"""


def test_texts_with_blanks_behind_the_numbers_are_told_apart_by_their_places():
    rows = BLANKS.splitlines(keepends=True)
    read = parse_placements(Path("a.txt"), "".join(rows[:4]).encode(), "mm")
    texts = [(place.value, place.package) for place in read]
    assert texts == [("10k 1%", "R 0402"), ("LM358", "TO-92 (bent)"), ("", "R 0402")]
    one_blank = "Ref X Y Rot Side Value Package\nR1 1 2 0 top 10k R0402\nR2 1 3 0 top 10k 1% R0402\n"
    before = "Ref Value Package X Y Rot Side\nR1 10k R0402 1 2 0 top\nR2 10k 1% R0402 1 3 0 top\n"
    for text, line in ((rows[0] + rows[4], 2), (one_blank, 3), (before, 3)):
        with pytest.raises(ConfigError, match=f"a.txt:{line}: "):
            parse_placements(Path("a.txt"), text.encode(), "mm")


def test_packages_that_begin_before_their_name_in_all_rows_are_told_from_values():
    # KiCad 4 begins them four signs before its name Package, and fills values and packages up to 16 signs.
    values = {"C1": "100u", "C2": "", "C3": "100n 16V", "C4": "ABCDEFGHIJKLMNOP", "C5": "ABCDEFGHIJKLMNOPQ"}
    rows = "".join(
        f"{refdes:<8} {value:<16} {'Capacitors_SMD:c':<16}{'' if len(value) > 16 else ' '}"
        f"{at:9.4f}  {-20.25:9.4f}  {0.0:8.1f}    F.Cu\n"
        for at, (refdes, value) in enumerate([*values.items(), ("R1", "10k"), ("R2", "1k")])
    )
    text = f"# Ref    Val                  Package         PosX       PosY        Rot     Side\n{rows}## End\n"
    parts = {part.refdes: part for part in parse_placements(Path("a.pos"), text.encode(), "mm")}
    assert {refdes: parts[refdes].value for refdes in values} == values
    assert {part.package for part in parts.values()} == {"Capacitors_SMD:c"}


@pytest.mark.parametrize(
    "text",
    [
        "Ref,X(mm),Y(mm),Rot,Side,Orig\nB1-R1,1,2,0,top,R1\nB1-R2,1,3,0,top,R2\n",
        "Ref,X(mm),Y(mm),Rot,Side\n+3V3,1,2,0,top\nCon-12,1,3,0,top\n",
        "Ref,X(mm),Y(mm),Rot,Side\nP1-P2,1,2,0,top\nP1-R1,1,3,0,top\n",
        "# Angles: counter-clockwise\nRef,X(mm),Y(mm),Rot,Side\nR1,1,2,360,top\nIN,1,2,0,top\n",
        "Ref,X(mm),Y(mm),Rot,Side,DNP,Mount\nR1,1,2,0,top,n/a,SMD\nR2,1,3,0,top,Place,THT\n",
        "Designator,Value,X(mm),Y(mm),Rot,Side,Net\nMCU,RP2040,1,2,0,top,N1\nAMP,LM358,1,3,0,*Top,N2\n",
        "Name,Value,X(mm),Y(mm),Rot,Side\nMCU,RP2040,1,2,0,top\nAMP,LM358,1,3,0,top\n",
        "Angles (CCW = counter  clockwise)\nRef,X (\u2033),Y (\u2033),Rot,Side\nR1,1,2,90,top\nR2,1,3,0,top\n",
    ],
)
def test_what_is_no_fault_is_not_asked_about(text):
    assert len(parse_file(Path("a.csv"), text.encode()).placements) == 2


NAMED = {"refdes": "who", "x": "east", "y": "north", "rotation": "spin"}
FORMS = {
    "columns": ("who,east,north,spin,Side\nR1,12.7,-3.5,90,top\n", {"columns": NAMED}),
    "sides": ("Ref,X,Y,Rot,Side\nR1,12.7,-3.5,90,LS\n", {"sides": {"ls": "top"}}),
    "decimal": ('Ref,X,Y,Rot,Side\nR1,"12,700","-3,500",90,top\n', {"decimal": "comma"}),
    "clockwise": ("Ref,X,Y,Rot,Side\nR1,12.7,-3.5,-90,top\n", {"clockwise": True}),
    "y": ("Ref,X,Y,Rot,Side\nR1,12.7,3.5,90,top\n", {"y": "down"}),
    "offset": ("Ref,X,Y,Rot,Side\nR1,112.7,46.5,90,top\n", {"offset": [-100, -50]}),
    "y and offset": ("Ref,X,Y,Rot,Side\nR1,2.7,53.5,90,top\n", {"y": "down", "offset": [10, 50]}),
    "order": ("R1,12.70,-3.50,90,10k,R0402\n", {"order": ("refdes", "x", "y", "rotation", "value", "package")}),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_recipe_says_what_a_file_does_not(name):
    text, said = FORMS[name]
    (place,) = parse_placements(Path("a-top.csv"), text.encode(), "mm", Answers(**said))
    assert (place.refdes, place.x_mm, place.y_mm) == ("R1", pytest.approx(12.7), pytest.approx(-3.5))
    assert (place.rotation_deg, place.side) == (90.0, Side.TOP)


def test_a_person_says_side_and_rotation_that_no_column_tells_and_no_column_that_is_not_there():
    raw, path = b"Ref,X,Y,Val\nR1,1,2,1k\n", Path("bottom.csv")
    for form in (Answers(), Answers(side=Side.TOP)):
        with pytest.raises(ConfigError, match="rotation"):
            parse_placements(path, raw, "mm", form)
    with pytest.raises(ConfigError, match="east"):
        parse_placements(path, raw, "mm", Answers(columns={"x": "east"}))
    (one,) = parse_placements(path, raw, "mm", Answers(side=Side.TOP, rotation=90))
    assert (one.side, one.rotation_deg) == (Side.TOP, 90.0)
    raw = b"Ref,X,Y,Rot,Side\nR1,1,2,45,bottom\n"
    (one,) = parse_placements(path, raw, "mm", Answers(side=Side.TOP, rotation=90))
    assert (one.side, one.rotation_deg) == (Side.BOTTOM, 45.0), "what the file says counts"


TURNS = "Ref,X,Y,Rot,Side\nR1,1,2,{},top\nR2,3,4,{},top\n"


@pytest.mark.parametrize(
    "turns",
    [
        *(("9000", "27000"), ("0", "900"), ("90000", "0"), ("1", "3"), ("1", "2"), ("1", "1")),
        *(("0", "3"), ("1", "-1"), ("-1", "0"), ("1.5708", "0"), ("3.14", "-1.57"), ("0.785", "4.712")),
        *(("1.00", "2.00"), ("1.5708", "1.5708,top\nR3,5,6,0.5236"), ("0", "450"), ("450", "900")),
    ],
)
def test_angles_in_parts_of_a_degree_or_in_quarter_turns_are_refused(turns):
    with pytest.raises(ConfigError, match="in degrees"):
        parse_placements(Path("x.csv"), TURNS.format(*turns).encode(), "mm")


@pytest.mark.parametrize("turns", ["360,-270", "0,4", "0,0", "0.8,0", "5.5,0", "1.57,90", "450,3", "810,90", "1.5,3"])
def test_angles_of_any_turn_are_degrees(turns):
    read = parse_placements(Path("x.csv"), TURNS.format(*turns.split(",")).encode(), "mm")
    assert [one.rotation_deg for one in read] == [float(turn) % 360 for turn in turns.split(",")]


def test_a_file_or_a_person_says_what_small_angles_count():
    raw = "Ref,X,Y,{},Side\nR1,1,2,{},top\nR2,3,4,{},top\n"
    degrees, quarters = Answers(angles="degrees"), Answers(angles="quarters")
    for name, cells, form, turns in (
        ("Rot", ("1", "3"), degrees, [1, 3]),
        ("Rot", ("1", "3"), quarters, [90, 270]),
        ("Rot (deg)", ("1", "3"), Answers(), [1, 3]),
        ("Rot", ("0.00", "3.00"), Answers(), [0, 3]),
        ("Rot", ("1\u00b0", "3\u00b0"), Answers(), [1, 3]),
    ):
        read = parse_placements(Path("x.csv"), raw.format(name, *cells).encode(), "mm", form)
        assert [one.rotation_deg for one in read] == turns
    with pytest.raises(ConfigError, match="quarter"):
        parse_placements(Path("x.csv"), raw.format("Rot", "1", "90").encode(), "mm", quarters)
    with pytest.raises(ConfigError, match="quarter"):
        parse_placements(Path("a.xml"), BOARD_XML.replace(" y=", ' rotation="90" y=').encode(), "", quarters)
    with pytest.raises(ConfigError, match="in degrees"):
        parse_placements(Path("x.csv"), raw.format("Rot", "9000", "27000").encode(), "mm", degrees)


OTHER_FILES = {
    "a report": b"## Unit = mm, Angle = deg.\n\n$BeginDESCRIPTION\n$EndDESCRIPTION\n\n$MODULE R1\nposition 1 2\n",
    "IDF": b'.HEADER\nBOARD_FILE 3.0 "x" 10/22/96 1\nb THOU\n.END_HEADER\n',
    "spreadsheet as XML": b'<?xml version="1.0"?><Workbook xmlns="urn:schemas-microsoft-com:office:spreadsheet"/>',
    "GenCAD": b"$HEADER\nGENCAD 1.4\n",
    "IPC-D-356": b"C  board\nP  UNITS CUST 0\n",
    "ODB": b"UNITS=MM\n#\nCMP 0 10.5 20.25 90.0 N C1 100nF ;0=1\n",
    "Gerber": b"G04 pads*\n%FSLAX46Y46*%\n",
    "KiCad": b"(kicad_sch (version 20221018))",
    "Eagle": b'<?xml version="1.0"?><!DOCTYPE eagle SYSTEM "eagle.dtd"><eagle version="9"/>',
    "Eagle before": bytes.fromhex("10806a00b0580000"),
    "KiCad before": b"PCBNEW-BOARD Version 1 date 2012\n",
    "Allegro": bytes.fromhex("000414000300000001000000"),
    "PDF": b"%PDF-1.4\n",
    "archive": b"PK\x03\x04" + bytes(26) + b"board-top.gbr",
    "web page": b"<!DOCTYPE html><html/>",
    "JSON": b'{"parts": []}',
}


@pytest.mark.parametrize("what", OTHER_FILES)
def test_a_file_that_is_no_list_is_named_with_the_way_out(what):
    with pytest.raises(ConfigError, match=f"{what}.* as CSV"):
        parse_placements(Path("x"), OTHER_FILES[what], "mm")
    with pytest.raises(ConfigError, match=f"{what}.* as CSV"):
        parse_bom(Path("x"), OTHER_FILES[what])
