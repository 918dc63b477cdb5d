#!/usr/bin/env bash
# A student's first day, with a laptop and the command line only. In an empty folder: ./student.sh
# (If the shell does not find onepass, use python -m onepass.)
set -euo pipefail

# 1. Two methods learn the digits, two classes at a time, each image once. No download is needed.
#    --resume skips runs that are already finished, and shows them with the others.
onepass run gsa er --memory 100 --seeds 2 --out runs/ --resume

# 2. List the settings and their meaning. --set changes one. (gsa alone would have its preset tuned.)
onepass list settings gsa --columns name,type,default
onepass run gsa --preset common --set lr=5e-4 --memory 100 --seeds 2 --out runs/ --resume

# 3. Show all runs as a table, as LaTeX for a report, and as a picture.
onepass table runs/
onepass table runs/ --format latex --columns method,variant,accuracy,n > table.tex
onepass figure accuracy runs/ -o accuracy.png

# 4. Show which of the 1442 training images GSA has stored: a table, and a sheet of the images.
onepass memory runs/gsa-digits-m100-s0/checkpoint.pt -o sheet.png

# 5. Classify images in a folder. These are three of the test set, as files.
python - <<'END'
from pathlib import Path

import onepass
from PIL import Image

data = onepass.load("digits")
Path("photos").mkdir(exist_ok=True)
for index in (0, 1, 2):
    name = f"photos/{index}-is-a-{data.class_names[data.test_y[index]]}.png"
    Image.fromarray(data.test_x[index, 0].numpy()).save(name)
END
onepass predict runs/gsa-digits-m100-s0/checkpoint.pt photos/

# 6. Use a convolutional network that suits a laptop, with a tenth of ResNet18's parameters.
onepass run er --set net=resnet18-slim --memory 100 --tasks 2 --out runs/ --resume
python -m onepass runs list runs/ --sort -accuracy --columns method,variant,seed,accuracy,seconds
