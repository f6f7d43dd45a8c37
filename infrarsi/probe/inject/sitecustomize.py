"""Start the probe in the ranks of a trial, then hand over to the environment's own sitecustomize.

The folder of this file goes first on PYTHONPATH. Without INFRARSI_PLAN it does nothing but hand over.
"""

import importlib.machinery
import importlib.util
import os
import sys
import time

_CLOCK = time.perf_counter  # taken before any user code can replace it
_HERE = os.path.dirname(os.path.abspath(__file__))


def _start_probe() -> None:
    package = os.path.dirname(_HERE)
    spec = importlib.util.spec_from_file_location(
        "_infrarsi_probe", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["_infrarsi_probe"] = module
    spec.loader.exec_module(module)
    if not module.start(os.environ["INFRARSI_PLAN"], _CLOCK):
        for name in [n for n in sys.modules if n.split(".")[0] == "_infrarsi_probe"]:
            del sys.modules[name]


def _hand_over() -> None:
    paths = [path for path in sys.path if os.path.abspath(path or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("INFRARSI_PLAN"):
    _start_probe()
_hand_over()
