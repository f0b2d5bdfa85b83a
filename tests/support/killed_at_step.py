"""A process that is killed before its n-th link, rename or removal, as by a power cut between two of them."""

import os

_KILLED = 9


def killed_at(step, work):
    """Do `work` in a child of this process, which is killed at a step; return whether it came so far."""
    process = os.fork()
    if process:
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        assert status in (0, _KILLED)
        return status == _KILLED
    calls = 0

    def deadly(really):
        def call(*given, **more):
            nonlocal calls
            calls += 1
            if calls >= step:
                os._exit(_KILLED)
            return really(*given, **more)

        return call

    try:
        for name in ("link", "replace", "rename", "unlink", "rmdir", "mkdir"):
            setattr(os, name, deadly(getattr(os, name)))
        work()
    except BaseException:
        os._exit(1)
    os._exit(0)
