"""What the reference checkpoints learned to recall: things and their colours, as training/train_reference_model.py and
validate/tasks/recall.cpp have them."""

COLOURS = "red blue green black white brown pink gray gold tan".split()
THINGS = "ball box hat cup book shoe kite boat drum coat lamp bell ring rope sock toy fork bag leaf stone".split()
