#!/usr/bin/env bash
# A student's first day, with a laptop and the command line only. In an empty folder: ./student.sh
# (python -m onepass is the same command, where the shell does not find onepass).
set -euo pipefail

# 1. Two methods learn the digits, two at a time, each image once. It needs no download.
#    --resume: if this was done before, what is finished is shown again.
onepass run gsa er --memory 100 --seeds 2 --out runs/ --resume

# 2. What is there to change, and what does it do? --set changes it.
onepass list settings gsa --columns name,type,default
onepass run gsa --set lr=5e-4 --memory 100 --seeds 2 --out runs/ --resume

# 3. All runs as a table, in a form for the report too, and as a picture.
onepass table runs/
onepass table runs/ --format latex --columns method,variant,accuracy,n > table.tex
onepass figure accuracy runs/ -o accuracy.png

# 4. What has GSA kept of the 1442 images that it saw? A table, and a sheet of the images.
onepass memory runs/gsa-digits-m100-s0/checkpoint.pt -o sheet.png

# 5. What does it say of images in a folder? These are three of the test set, as files.
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

# 6. A convolutional network that suits a laptop: a tenth of ResNet18's parameters.
onepass run er --set net=resnet18-slim --memory 100 --tasks 2 --out runs/ --resume
python -m onepass runs list runs/ --sort -accuracy --columns method,variant,seed,accuracy,seconds
