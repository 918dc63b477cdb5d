#!/usr/bin/env bash
# A vision researcher's first day: loaders, a network and a method of one's own. In this folder:
# ./run.sh
set -euo pipefail

# 1. Images from torch's own loaders, in Python.
python loaders.py

# 2. Is the method right? Some forty checks: saved and opened bit for bit, costs as declared, ...
onepass check my_method:FocalER

# 3. The method under the same protocol as all others, with the network of my_net.py.
#    On a GPU add --precision bf16, and each step is one CUDA graph.
onepass run er focal-er gsa --import my_method --set net=my_net:small --memory 100 --seeds 2 \
    --out runs/ --resume

# 4. What its settings are, and which runs there are.
onepass list settings focal-er --import my_method --columns name,default
onepass runs list runs/ --columns method,seed,accuracy,any-time,where
