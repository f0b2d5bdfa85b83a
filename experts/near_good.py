"""Findings of a classifier that knows its good parts: an OK must lie near one, and a map shows where it does not.

Kinds with a head have a `PatchNetwork` for it, whose outputs stand beside their logits; see `experts.nearness`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from coe.core import FULL, Expert, Finding
from coe.store import outputs as network_outputs
from coe.store.kinds import ExpertInput
from experts.findings import classified
from experts.geometry import back
from experts.pair import heat_of
from experts.patch import AT_LIMIT, UNLIKE, likeness_of

_NEARLY = 0.4
"""From this score on, instead of 0.5, a finding of a lesser variant is in doubt, and looked at again in full precision.

Rounding makes pictures look farther off.
"""


def near_good(outputs: Mapping[str, torch.Tensor], prepared: Sequence[ExpertInput], expert: Expert) -> list[Finding]:
    """Return the likeliest label and its probability, in doubt if the picture looks unlike every good part.

    Such a finding has no margin. No label against a part is in doubt, since bad parts are unlike good ones. With such a
    label, or in doubt, a finding says where. Raises StoreError for outputs that are not finite numbers.
    """
    network_outputs.prove(outputs)
    found = classified(outputs["logits"].float().softmax(dim=1), expert)
    farthest = torch.maximum(outputs["score"], outputs["unlike"]).float()
    is_far = (farthest > (AT_LIMIT if expert.variant == FULL else _NEARLY)).tolist()
    for place, one in enumerate(prepared):
        is_bad = found[place].label in expert.reject
        if is_far[place] and not is_bad:
            found[place] = replace(found[place], doubt=UNLIKE, margin=0.0)
        if is_far[place] or is_bad:
            scores, to_picture = outputs["scores"][place].float().cpu().numpy(), back(one)
            found[place] = replace(
                found[place],
                heat=heat_of(scores, one, to_picture, expert.input_size),
                likeness=likeness_of(scores, outputs["shown"][place], to_picture, expert.input_size),
            )
    return found
