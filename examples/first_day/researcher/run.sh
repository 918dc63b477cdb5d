#!/usr/bin/env bash
# A vision researcher's first day: your own loaders, network and method. In this folder: ./run.sh
set -euo pipefail

# 1. Learn images from torch's own loaders, in Python.
python loaders.py

# 2. Run some forty checks on the method: exact after a save, costs as declared, and so on.
onepass check my_method:FocalER

# 3. Run the method under the same protocol as the others, with the network of my_net.py.
#    On a GPU add --precision bf16, and each step is one CUDA graph.
onepass run er focal-er gsa --import my_method --set net=my_net:small --memory 100 --seeds 2 \
    --out runs/ --resume

# 4. List its settings, and all runs.
onepass list settings focal-er --import my_method --columns name,default
onepass runs list runs/ --columns method,seed,accuracy,any-time,where
