"""Engines: how a model is stepped, sharded and saved. One port, two engines.

``select.engine`` chooses by the recipe: plain torch for one process, DeepSpeed for ZeRO 0 to 3.
"""
