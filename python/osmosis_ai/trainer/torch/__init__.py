"""The trainer of `[trainer] kind = "torch"`: updates a Hugging Face model from rows of `osmosis`.

`osmosis train submit` starts it as `python -m osmosis_ai.trainer.torch`, below `accelerate launch`
where there are several devices, and talks to it over a socket (`channel`). It needs the extra
`osmosis-rs[torch]`; nothing else in the package imports torch.
"""
