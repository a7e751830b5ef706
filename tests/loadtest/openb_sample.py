"""The files of a small sample of a public trace; data/README.md tells where it is from."""

from pathlib import Path

DATA = Path(__file__).parent / "data"
NODES, PODS = DATA / "openb_node_list_sample.csv", DATA / "openb_pod_list_sample.csv"
